# compile.py KERNELS OUT: every .cu of a folder to PTX, through NVRTC's library of this Python environment.
import ctypes
import glob
import os
import sys

# Products with tensor cores need more than the oldest card has.
LOWEST, TENSOR_CORES = "compute_61", "compute_80"


ADDR_NO_RANDOMIZE = 0x0040000


def hold_addresses_still():
    """Starts over without randomised addresses: the compiler orders equal choices by where they lie in memory."""
    libc = ctypes.CDLL(None)
    now = libc.personality(0xFFFFFFFF)
    if now != -1 and not now & ADDR_NO_RANDOMIZE and libc.personality(now | ADDR_NO_RANDOMIZE) != -1:
        os.execv(sys.executable, sys.orig_argv)


def text_of(lib, program, size_of, get):
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.value


def compile_kernels(lib, path, folder):
    with open(path, "rb") as file:
        source = file.read()
    name = os.path.basename(path)
    program = ctypes.c_void_p()
    if lib.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None):
        sys.exit(f"{name}: NVRTC made no program")
    arch = TENSOR_CORES if "mma" in name else LOWEST
    # No product and sum become one where the source has two: both products must round alike.
    options = [f"--gpu-architecture={arch}", "--fmad=false", "--std=c++17", f"-I{folder}", "--diag-suppress=128"]
    listed = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = lib.nvrtcCompileProgram(program, len(options), listed)
    log = text_of(lib, program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog).decode().strip()
    if log or failed:
        sys.exit(f"{name}: {log}")
    ptx = text_of(lib, program, lib.nvrtcGetPTXSize, lib.nvrtcGetPTX)
    # A function that nobody defines stays unnoticed until a card loads the kernels.
    if b".extern .func" in ptx:
        sys.exit(f"{name}: calls a function that is not there")
    return ptx


def main(folder, out):
    found = glob.glob(os.path.join(sys.prefix, "lib/*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    lib = ctypes.CDLL(found[0])
    for path in sorted(glob.glob(os.path.join(folder, "*.cu"))):
        ptx = compile_kernels(lib, path, folder)
        with open(os.path.join(out, os.path.basename(path)[: -len("cu")] + "ptx"), "wb") as file:
            file.write(ptx)


if sys.platform == "linux":
    hold_addresses_still()
main(*sys.argv[1:])
