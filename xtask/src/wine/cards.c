/* Plays graphics cards under Wine: enters devices into its registry as Plug and Play would, or takes them out.
 *
 *   cards plug INSTANCE BUS ADDRESS PROBLEM SERVICE VERSION HARDWARE-ID...
 *   cards pull INSTANCE
 *
 * A SERVICE of "-" is a device without a driver. What is plugged in again is changed. */
#include <windows.h>
#include <setupapi.h>
#include <initguid.h>
#include <devpkey.h>
#include <stdio.h>
#include <wchar.h>

/* MinGW's headers lack it. */
WINSETUPAPI BOOL WINAPI SetupDiSetDevicePropertyW(HDEVINFO, PSP_DEVINFO_DATA, const DEVPROPKEY *, DEVPROPTYPE,
                                                  const BYTE *, DWORD, DWORD);

static HDEVINFO list;
static SP_DEVINFO_DATA device = {sizeof(device)};

static void must(BOOL is_done, const wchar_t *what)
{
    if (is_done) return;
    fwprintf(stderr, L"%ls: error %lu\n", what, GetLastError());
    exit(1);
}

static void set(const DEVPROPKEY *key, DEVPROPTYPE type, const void *value, size_t bytes)
{
    must(SetupDiSetDevicePropertyW(list, &device, key, type, value, (DWORD)bytes, 0), L"set a property");
}

static void set_number(const DEVPROPKEY *key, const wchar_t *word)
{
    UINT32 number = wcstoul(word, NULL, 0);
    set(key, DEVPROP_TYPE_UINT32, &number, sizeof(number));
}

static void set_text(const DEVPROPKEY *key, const wchar_t *text)
{
    set(key, DEVPROP_TYPE_STRING, text, (wcslen(text) + 1) * sizeof(*text));
}

static void set_ids(wchar_t **ids, int count)
{
    wchar_t texts[1024];
    size_t len = 0;
    for (int i = 0; i < count; i++) {
        size_t with_end = wcslen(ids[i]) + 1;
        must(len + with_end < 1024, L"fewer hardware ids");
        wcscpy(texts + len, ids[i]);
        len += with_end;
    }
    texts[len++] = 0;
    set(&DEVPKEY_Device_HardwareIds, DEVPROP_TYPE_STRING_LIST, texts, len * sizeof(*texts));
}

static void plug(wchar_t **words, int count)
{
    const GUID no_class = {0};
    if (!SetupDiOpenDeviceInfoW(list, words[0], NULL, 0, &device)) {
        must(SetupDiCreateDeviceInfoW(list, words[0], &no_class, NULL, NULL, 0, &device), L"make a device");
        must(SetupDiRegisterDeviceInfo(list, &device, 0, NULL, NULL, NULL), L"register it");
    }
    set_number(&DEVPKEY_Device_BusNumber, words[1]);
    set_number(&DEVPKEY_Device_Address, words[2]);
    set_number(&DEVPKEY_Device_ProblemCode, words[3]);
    if (wcscmp(words[4], L"-")) {
        set_text(&DEVPKEY_Device_Service, words[4]);
        set_text(&DEVPKEY_Device_DriverVersion, words[5]);
    }
    set_ids(words + 6, count - 6);
}

int wmain(int argc, wchar_t **argv)
{
    list = SetupDiCreateDeviceInfoList(NULL, NULL);
    must(list != INVALID_HANDLE_VALUE, L"make a list");
    if (argc > 8 && !wcscmp(argv[1], L"plug")) {
        plug(argv + 2, argc - 2);
    } else if (argc == 3 && !wcscmp(argv[1], L"pull")) {
        must(SetupDiOpenDeviceInfoW(list, argv[2], NULL, 0, &device), L"find the device");
        must(SetupDiRemoveDevice(list, &device), L"remove it");
    } else {
        return 2;
    }
    return 0;
}
