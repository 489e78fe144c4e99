/* Rust's standard library asks bcryptprimitives.dll for random numbers; Wine 8 has none. */
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T bytes)
{
    return RtlGenRandom(to, (ULONG)bytes);
}
