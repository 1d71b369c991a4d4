import ctypes, os, struct, sys
def step(code, yes, no, value): return struct.pack("HBBI", code, yes, no, value)
program = b"".join([step(0x20, 0, 0, 0), step(0x15, 0, 5, 41), step(0x20, 0, 0, 16), step(0x15, 0, 3, 16),
    step(0x20, 0, 0, 32), step(0x15, 0, 1, 12), step(0x06, 0, 0, 0x50000 | 93), step(0x06, 0, 0, 0x7fff0000)])
buffer = ctypes.create_string_buffer(program, len(program))
class Program(ctypes.Structure): _fields_ = [("size", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(Program(8, ctypes.addressof(buffer)))) == 0
os.execv(sys.argv[1], sys.argv[1:])
