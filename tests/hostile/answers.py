"""Payloads that a program writes in place of its answers, each at the largest permitted size."""

SIZE = 4_000_000
_COLLIDING = 'f\'["i","{k * (2**61 - 1):#x}"]\''
VALUES = {
    # Python source of the text that stands for the value of case 0; N is the size allowed
    "set of colliding integers": "'[\"s\",[' + join(k * (2**61 - 1) for k in range(1, N // 23)) + ']]'",
    "set of colliding coded integers": f"'[\"s\",[' + join({_COLLIDING} for k in range(1, N // 29)) + ']]'",
    "keys that collide": "'[\"d\",[' + join(f'[{k * (2**61 - 1)},0]' for k in range(1, N // 27)) + ']]'",
    "colliding floats": '\'["s",[\' + join(f\'["f","{m}p+{61 * e}"]\' for e in range(16) for m in range(1, N // 400))'
    " + ']]'",
    "colliding tuples": "'[\"s\",[' + join(f'[\"t\",[{k * (2**61 - 1)}]]' for k in range(1, N // 31)) + ']]'",
    "colliding frozen sets": "'[\"s\",[' + join(f'[\"z\",[{k * (2**61 - 1)}]]' for k in range(1, N // 31)) + ']]'",
    "colliding complex numbers": '\'["s",[\' + join(f\'["c","{1000003 * k}","-{k}"]\' for k in range(1, N // 34))'
    " + ']]'",
    "many small colliding sets": "'[\"l\",[' + ','.join(['[\"s\",[' + join(k * (2**61 - 1) for k in range(1, 300))"
    " + ']]'] * (N // 7200)) + ']]'",
    "frozen sets of all below": "'[\"s\",[' + join('[\"z\",[%s]]' % join(n for n in range(17) if k >> n & 1)"
    " for k in range(N // 40)) + ']]'",
    "integers of equal low bits": "'[\"s\",[' + join(k << 40 for k in range(1, N // 20)) + ']]'",
    "many integers": "'[\"s\",[' + join(range(N // 7)) + ']]'",
    "empty lists": "'[\"l\",[' + ','.join(['[]'] * (N // 3)) + ']]'",
    "encoded empty lists": "'[\"l\",[' + ','.join(['[\"l\",[]]'] * (N // 9)) + ']]'",
    "small objects": "'[' + ','.join(['{\"a\":1}'] * (N // 8)) + ']'",
    "object with many keys": "'{' + ','.join(f'\"{k}\":1' for k in range(N // 12)) + '}'",
    "floats": "'[\"l\",[' + ','.join(['1.5'] * (N // 4)) + ']]'",
    "encoded floats": "'[\"l\",[' + ','.join(['[\"f\",\"1\"]'] * (N // 10)) + ']]'",
    "short texts": "'[\"l\",[' + ','.join(['\"ab\"'] * (N // 5)) + ']]'",
    "empty texts": "'[\"l\",[' + ','.join(['\"\"'] * (N // 3)) + ']]'",
    "long integers": "'[\"l\",[' + ','.join(['9' * 4299] * (N // 4300)) + ']]'",
    "an endless integer": "'9' * N",
    "an endless float": "'0.' + '9' * N",
    "an endless coded integer": "'[\"i\",\"0x' + 'f' * N + '\"]'",
    "coded integers": "'[\"l\",[' + ','.join(['[\"i\",\"0x' + 'f' * 60000 + '\"]'] * (N // 60020)) + ']]'",
    "nesting": "'[' * N",
    "nested lists": "'[\"l\",[' * 400 + ']]' * 400",
    "escapes": "'\"' + '\\\\n' * (N // 2) + '\"'",
    "escaped quotes": "'\"' + '\\\\\"' * (N // 2) + '\"'",
    "quotes without end": "'\"' + '\\\\\"' * (N // 2)",
    "text of marks": "'\"' + ',[{:' * (N // 4) + '\"'",
    "text of wide characters": "'\"' + '\\N{GRINNING FACE}' * (N // 4) + '\"'",
    "bytes": "'[\"b\",\"' + 'AAAA' * (N // 4) + '\"]'",
    "small sets": "'[\"l\",[' + ','.join(['[\"s\",[1]]'] * 24_000) + ']]'",
    "keys nested deep": "'[\"s\",[' + ','.join('[\"t\",[' * 3 + f'{k},{k}' + ']]' * 3 for k in range(9_000)) + ']]'",
    "values just within the cap": "'[\"l\",[' + ','.join(['[\"f\",\"1\"]'] * 49_000) + ']]'",
    "a set just within the cap": "'[\"s\",[' + join(k << 31 for k in range(10_000)) + ']]'",
    "sixteen alike": "'[\"l\",[' + ','.join(['[\"s\",[' + join(k * (2**61 - 1) for k in range(16)) + ']]']"
    " * 2900) + ']]'",
    "sixteen alike and long": "'[\"s\",[' + ','.join(['[\"t\",[%s]]' % join([0] * 3000 + [k * (2**61 - 1)])"
    " for k in range(16)]) + ']]'",
    "object as a body": "'[\"l\",{' + ','.join(f'\"{k}\":1' for k in range(N // 12)) + '}]'",
}
LINES = {
    # Python source of everything the program writes
    "empty lines": "b'\\n' * N",
    "lines of blanks": "b' \\n' * (N // 2)",
    "torn lines": "b'{\\n' * (N // 2)",
    "lines of numbers": "b'1\\n' * (N // 2)",
    "answers to no case": "b'{\"item\": 1}\\n' * (N // 12)",
    "many answers to one case": 'b\'{"item": {"case": 0, "value": 1}}\\n\' * (N // 38)',
    "ends": "b'{\"result\": 1}\\n' * (N // 14)",
    "UTF-16": "('{\"item\": [\"\\\\\"\",' + '[],' * (N // 6 - 99) + '0]}').encode('utf-16-le')",
    "UTF-32": "('{\"item\": [\"\\\\\"\",' + '[],' * (N // 12 - 99) + '0]}').encode('utf-32')",
    "a line of null bytes": "b'\\0' * N",
}
_WRITE = """
import os

N = {size} - 100

def join(values):
    return ",".join(map(str, values))

data = {data}
while data:
    data = data[os.write(3, data) :]
os._exit(0)
"""


def program(source: str, *, is_value: bool) -> str:
    """A solution that writes the payload where its answers go, and leaves."""
    data = f"""('{{"item": {{"case": 0, "value": ' + {source} + '}}}}\\n').encode()""" if is_value else source
    return _WRITE.format(size=SIZE, data=data)
