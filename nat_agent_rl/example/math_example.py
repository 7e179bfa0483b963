"""A calculator for NAT's `tool_calling_agent`, and an evaluator that compares answers as numbers.

Not here: the tasks (`dataset/math_tasks/`), the workflow (`math.yml`).
"""

import ast
import operator
import re
from collections.abc import AsyncIterator
from fractions import Fraction

from nat.builder.builder import Builder, EvalBuilder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from pydantic import BaseModel, Field

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
MAX_CHARS = 200
MARKER = re.compile(r"\banswer\**\s*:", re.IGNORECASE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Expression(BaseModel):
    expression: str = Field(description="Such as (12.5 + 3) * 4 or 15% of 80.")


class CalculatorConfig(FunctionBaseConfig, name="example_calculator"):
    """Sums, differences, products and quotients."""


class AnswerConfig(EvaluatorBaseConfig, name="example_answer"):
    """1 where the number behind the last "Answer:" is the expected one, else 0."""


@register_function(config_type=CalculatorConfig)
async def calculator(config: CalculatorConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    async def calculate(expression: str) -> str:
        try:
            return text_of(value_of(expression))
        except (ValueError, ZeroDivisionError) as error:
            return f"error: {error}"

    yield FunctionInfo.from_fn(calculate, input_schema=Expression, description="Calculate an arithmetic expression.")


@register_evaluator(config_type=AnswerConfig)
async def answer(config: AnswerConfig, builder: EvalBuilder) -> AsyncIterator[EvaluatorInfo]:
    from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
    from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

    class AnswerEvaluator(BaseEvaluator):
        async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
            given, expected = last_number(str(item.output_obj)), last_number(str(item.expected_output_obj))
            score = float(given is not None and given == expected)
            return EvalOutputItem(id=item.id, score=score, reasoning=f"{given} for {expected}")

    evaluator = AnswerEvaluator(max_concurrency=builder.get_max_concurrency())
    yield EvaluatorInfo(config=config, evaluate_fn=evaluator.evaluate, description="Compares numbers by their value.")


def last_number(text: str) -> Fraction | None:
    """The last number behind the last "Answer:", or of the whole text: "Answer: 1,200.50 dollars" -> 2401/2."""
    markers = list(MARKER.finditer(text))
    numbers = NUMBER.findall(text[markers[-1].end() :] if markers else text)
    return Fraction(numbers[-1].replace(",", "")) if numbers else None


def value_of(expression: str) -> Fraction:
    """The exact value of a sum of products. ValueError for anything else, ZeroDivisionError for a division by 0."""
    text = expression.replace("×", "*").replace("÷", "/").replace("% of", "/100*")
    if len(text) > MAX_CHARS:
        raise ValueError(f"the expression has {len(text)} characters; at most {MAX_CHARS} are allowed")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"cannot read {expression!r}") from None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"cannot read {ast.unparse(node)!r}; write numbers, + - * / and parentheses")


def text_of(value: Fraction) -> str:
    """The shortest decimal text: 42, 12.5, 0.3333333333."""
    return f"{float(value):.10f}".rstrip("0").rstrip(".") if value.denominator > 1 else str(value.numerator)
