"""Allowlists: what a project that the toolkit builds may import, call, define and look up. All else reaches beyond.

Names only, with no import of the toolkit; `read_reach.py` holds a source against them, `confined.py` the running code.
"""

import collections
import datetime
import decimal
import fractions
import importlib
import inspect
import io
import re
from functools import cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANY = _words("*")
"""Of a module: all its public names but modules."""
_TYPING = _words("""
    Annotated Any AsyncGenerator AsyncIterator Awaitable Callable ClassVar Coroutine DefaultDict Deque Dict Final
    FrozenSet Generator Generic Hashable Iterable Iterator List Literal LiteralString Mapping MutableMapping
    NamedTuple Never NewType NoReturn NotRequired Optional Protocol Required Self Sequence Set Sized SupportsFloat
    SupportsInt Tuple Type TypeAlias TypedDict TypeGuard TypeVar TYPE_CHECKING Union assert_never cast final overload
    override
""")
_NAT = _words("""
    Builder Function FunctionBaseConfig FunctionGroup FunctionGroupBaseConfig FunctionInfo ComponentRef EmbedderRef
    FunctionGroupRef FunctionRef LLMRef MemoryRef ObjectStoreRef RetrieverRef LLMFrameworkEnum register_function
    register_function_group
""")
MODULES: dict[str, frozenset[str]] = {
    "__future__": _words("annotations"),
    "abc": _words("ABC abstractmethod"),
    "asyncio": _words("""
        sleep gather wait_for timeout to_thread Lock Semaphore BoundedSemaphore Event Condition Queue create_task
        TaskGroup TimeoutError CancelledError as_completed shield QueueEmpty QueueFull
    """),
    "base64": _words("b64encode b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode"),
    "bisect": ANY,
    "calendar": _words(
        "monthrange isleap leapdays monthcalendar timegm day_name day_abbr month_name month_abbr weekday"
    ),
    "cmath": ANY,
    "collections": _words("Counter OrderedDict defaultdict deque namedtuple ChainMap abc"),
    "collections.abc": ANY,
    "colorsys": ANY,
    "contextlib": _words("asynccontextmanager contextmanager suppress nullcontext AsyncExitStack ExitStack aclosing"),
    "copy": _words("copy deepcopy"),
    "csv": _words("reader writer DictReader DictWriter QUOTE_ALL QUOTE_MINIMAL QUOTE_NONE Error"),
    "dataclasses": _words("dataclass field asdict astuple replace KW_ONLY"),
    "datetime": _words("date datetime time timedelta timezone UTC MINYEAR MAXYEAR"),
    "decimal": _words("""
        Decimal InvalidOperation DivisionByZero DecimalException getcontext localcontext ROUND_HALF_UP ROUND_HALF_EVEN
        ROUND_HALF_DOWN ROUND_UP ROUND_DOWN ROUND_CEILING ROUND_FLOOR
    """),
    "difflib": _words("get_close_matches SequenceMatcher"),
    "enum": _words("Enum IntEnum StrEnum Flag IntFlag auto unique"),
    "fractions": _words("Fraction"),
    "functools": _words("cache cached_property cmp_to_key lru_cache partial reduce total_ordering wraps"),
    "hashlib": _words("md5 sha1 sha256 sha512 sha3_256 blake2b"),
    "heapq": ANY,
    "html": _words("escape unescape"),
    "httpx": _words("""
        AsyncClient Client AsyncHTTPTransport HTTPTransport Timeout Limits Response Request Headers URL QueryParams
        BasicAuth HTTPError HTTPStatusError RequestError TransportError TimeoutException ConnectTimeout ReadTimeout
        WriteTimeout PoolTimeout NetworkError ConnectError ReadError WriteError ProtocolError RemoteProtocolError
        DecodingError TooManyRedirects UnsupportedProtocol InvalidURL codes get post put patch delete head
    """),
    "io": _words("StringIO BytesIO"),
    "itertools": ANY,
    "json": _words("dumps loads JSONDecodeError JSONEncoder"),
    "keyword": _words("iskeyword"),
    "logging": _words("getLogger Logger basicConfig DEBUG INFO WARNING ERROR CRITICAL NOTSET NullHandler"),
    "math": ANY,
    "numbers": _words("Number Real Integral Rational Complex"),
    "operator": _words("""
        add sub mul truediv floordiv mod pow neg pos abs lt le eq ne ge gt and_ or_ xor not_ contains concat itemgetter
        truth is_ is_not
    """),
    "pydantic": _words("""
        BaseModel RootModel Field ConfigDict ValidationError ValidationInfo PrivateAttr computed_field field_serializer
        field_validator model_serializer model_validator conbytes condecimal confloat conint conlist conset constr
        AfterValidator BeforeValidator StringConstraints PositiveInt PositiveFloat NonNegativeInt NonNegativeFloat
        NegativeInt NegativeFloat NonPositiveInt NonPositiveFloat StrictBool StrictFloat StrictInt StrictStr FiniteFloat
        SecretStr AnyUrl AnyHttpUrl HttpUrl UUID4 AwareDatetime NaiveDatetime PastDate FutureDate
    """),
    "random": _words("Random random randint randrange choice choices sample shuffle uniform gauss seed"),
    "re": _words("""
        compile match search fullmatch findall finditer split sub subn escape error Pattern Match A ASCII I IGNORECASE M
        MULTILINE S DOTALL X VERBOSE U UNICODE NOFLAG RegexFlag
    """),
    "secrets": _words("token_hex token_urlsafe choice randbelow compare_digest"),
    "statistics": ANY,
    "string": _words("""
        ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation printable whitespace
        capwords
    """),
    "struct": _words("pack unpack calcsize error"),
    "textwrap": _words("dedent indent fill wrap shorten"),
    "time": _words("time monotonic perf_counter sleep strftime gmtime time_ns monotonic_ns perf_counter_ns"),
    "typing": _TYPING,
    "typing_extensions": _TYPING,
    "unicodedata": ANY,
    "urllib.parse": _words("""
        quote quote_plus unquote unquote_plus urlencode urljoin urlparse urlsplit urlunparse urlunsplit parse_qs
        parse_qsl
    """),
    "uuid": _words("UUID uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL"),
    "zlib": _words("crc32 adler32"),
    "zoneinfo": _words("ZoneInfo ZoneInfoNotFoundError"),
    "nat.plugin_api": _NAT,
    "nat.builder.builder": _NAT,
    "nat.builder.framework_enum": _NAT,
    "nat.builder.function": _NAT,
    "nat.builder.function_info": _NAT,
    "nat.cli.register_workflow": _NAT,
    "nat.data_models.component_ref": _NAT,
    "nat.data_models.function": _NAT,
}


@cache
def names_of(module: str) -> frozenset[str]:
    """What may be taken from a module; nothing of one that is not listed."""
    names = MODULES.get(module, frozenset())
    if names is not ANY:
        return names
    found = importlib.import_module(module)
    return frozenset(
        name for name in dir(found) if not name.startswith("_") and not inspect.ismodule(getattr(found, name))
    )


def submodules_of(module: str) -> frozenset[str]:
    """Names of a module or package that stand for listed modules: `abc` of `collections`."""
    deeper = [each.removeprefix(f"{module}.") for each in MODULES if each.startswith(f"{module}.")]
    return frozenset(each.partition(".")[0] for each in deeper)


BUILTINS = _words("""
    abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate filter
    float format frozenset getattr hasattr hash hex id int isinstance issubclass iter len list map max min next object
    oct ord pow print property range repr reversed round set slice sorted staticmethod str sum super tuple type zip
    NotImplemented Ellipsis
""")
"""Besides exceptions. `getattr`, `hasattr`, `super` and `type` in a few forms only."""
DUNDER_METHODS = _words("""
    __init__ __post_init__ __str__ __repr__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__ __delitem__
    __call__ __enter__ __exit__ __aenter__ __aexit__ __aiter__ __anext__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __bool__ __int__ __float__ __index__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__
    __truediv__ __floordiv__ __mod__ __pow__ __neg__ __abs__ __and__ __or__ __xor__ __reversed__ __missing__
""")
"""A class may define these: what Python hands to them are operands. Others decide how foreign code takes it apart."""
DUNDER_NAMES = _words("__name__ __doc__ __file__")
DUNDER_TARGETS = _words("__all__ __version__ __author__ __slots__")
"""And `__hash__`, to be None: with a chosen one, `__eq__` would be handed what caches of others hold beside it."""
DUNDER_ATTRIBUTES = _words("__name__ __qualname__ __doc__ __members__ __version__")
BASES = _words("""
    BaseModel RootModel FunctionBaseConfig FunctionGroupBaseConfig Enum IntEnum StrEnum Flag IntFlag NamedTuple
    TypedDict Protocol ABC Generic object str int float dict list set tuple Counter OrderedDict defaultdict JSONEncoder
""")
"""Foreign classes that a class may be derived from, besides exceptions."""
ENUMS = _words("Enum IntEnum StrEnum Flag IntFlag")
ONLY_BASES = ENUMS | {"NamedTuple", "TypedDict"}
"""Calling them makes classes from texts."""
CLASS_KEYWORDS = _words("""
    name frozen extra total use_enum_values validate_assignment validate_default str_strip_whitespace str_to_lower
    str_to_upper str_min_length str_max_length populate_by_name arbitrary_types_allowed title strict
""")
CLASS_DECORATORS = _words("dataclass total_ordering unique final override")
"""Foreign decorators that give back the class they are put on."""
TAKING_HINTS = _words("""
    AfterValidator BeforeValidator computed_field field_serializer field_validator model_serializer model_validator
""")
"""What takes types as arguments, and evaluates those that are texts."""
HINT_KEYWORDS = _words("return_type json_schema_input_type")
OVERRIDABLE = _words("Config model_parametrized_name")
"""Names in a class by which pydantic hands to it, or lets it change, what a model is made of."""
CONSTRAINED = _words("conbytes condecimal confloat conint conlist conset constr")
FRAMES = _words("""
    ag_await ag_code ag_frame ag_running cr_await cr_code cr_frame cr_origin cr_running f_back f_builtins f_code
    f_globals f_lasti f_locals f_trace func_globals gi_code gi_frame gi_running gi_yieldfrom mro tb_frame tb_lasti
    tb_lineno tb_next with_traceback model_rebuild
""")
"""Attributes that lead from an object to what runs it. A project may not even have one of that name."""
OF_TOOLKIT = _words("""
    acall_invoke acall_stream add_function ainvoke astream from_fn get_accessible_functions get_function
    get_function_config get_function_group get_function_groups get_functions get_llm get_tool get_tools input_schema
""")
"""Attributes of the toolkit's objects that no project sets."""
PLAIN_TYPES = _words("""
    bool bytearray bytes complex dict float frozenset int list object set slice str tuple type range Exception
    BaseException ArithmeticError AttributeError IndexError KeyError LookupError OSError OverflowError RuntimeError
    StopIteration TimeoutError TypeError ValueError ZeroDivisionError NotImplementedError
""")
_DATA_TYPES = (
    *(str, bytes, bytearray, int, float, complex, bool, list, dict, set, frozenset, tuple, range, slice),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, re.Pattern, re.Match, io.StringIO),
    *(collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque, collections.ChainMap),
)
_OF_FOREIGN = _words("""
    create description config_type type
    model_copy model_dump model_dump_json model_fields model_json_schema model_validate model_validate_json errors
    error_count data get_secret_value scheme host path query
    aclose aiter_lines aiter_text content cookies delete get head headers is_client_error is_error is_redirect
    is_server_error is_success json options params patch post put raise_for_status read aread reason_phrase request
    response status_code stream text url elapsed base_url timeout
    args code doc lineno msg name pos reason strerror errno value
    critical debug error exception info log warning setLevel isEnabledFor level
    acquire cancel cancelled clear create_task done empty full get_nowait is_set join locked maxsize notify notify_all
    put_nowait qsize release result set task_done wait
    cache_clear cache_info cache_parameters currsize getter hits maxsize misses setter deleter
    fieldnames line_num writeheader writerow writerows getvalue
    bytes digest hexdigest hex update int ratio real imag
    enter_context enter_async_context callback push_async_callback pop_all close
    prec rounding key netloc fragment geturl hostname port username password
    randint randrange choice choices sample shuffle uniform gauss random
    week weekday year
    tm_year tm_mon tm_mday tm_hour tm_min tm_sec
""")
ATTRIBUTES = (
    frozenset(name for kind in _DATA_TYPES for name in dir(kind) if not name.startswith("_")) | _OF_FOREIGN | OF_TOOLKIT
) - {"format", "format_map", "detach"}
"""Attributes that foreign objects may be asked for. A project's own objects have whatever it gives them."""
