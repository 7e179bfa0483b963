"""Words of the generator's requests with others of the same meaning, for each twin; no word is in both twins' choices
for one phrase. Longer phrases are replaced before shorter ones, and only outside of literals.
"""

from wordings.originals import Twin


def _both(test: tuple[str, ...], val: tuple[str, ...]) -> dict[Twin, tuple[str, ...]]:
    return {"test": test, "val": val}


_PROJECT = {
    "Build": _both(("Implement", "Craft", "Develop"), ("Construct",)),
    "agent in the package": _both(("bot inside the package", "assistant in the module"), ("agent within the library",)),
    "Write the": _both(("Code the", "Author the", "Program the"), ("Draft the",)),
    "NAT agent": _both(("NeMo agent", "NAT bot", "NAT assistant"), ("NAT helper",)),
    "create a complete": _both(("make a full", "produce a whole", "generate a finished"), ("set up an entire",)),
    "project": _both(("package", "code base"), ("repository",)),
    "called": _both(("named", "titled"), ("labelled",)),
    "I need": _both(("I require", "We want", "I'd like"), ("I am after",)),
    "its package is": _both(("its module is", "its Python package is"), ("its library is",)),
    "Register the type": _both(("Declare the kind", "Enter the class", "Sign up the category"), ("Record the sort",)),
    "configure it as": _both(("set it up as", "list it as"), ("enter it as",)),
    "The function type is": _both(("The tool kind is", "The component class is"), ("The routine's sort is",)),
    "the instance": _both(("the object", "the entry", "the copy"), ("the item",)),
    "Name the instance": _both(("Call the object", "Title the entry"), ("Label the item",)),
    "its type is": _both(("its kind is", "its class is"), ("its sort is",)),
    "It takes": _both(("It accepts", "It receives", "It gets"), ("It expects",)),
    "Inputs": _both(("Arguments", "Parameters"), ("Operands",)),
    "Config field": _both(("Option", "Configuration entry", "Configurable value"), ("Adjustable value",)),
    "Setting": _both(("Parameter", "Knob"), ("Preference",)),
    "default": _both(("preset", "standard value", "initially"), ("normally",)),
    "Example": _both(("Sample", "Illustration"), ("Specimen",)),
    "For instance": _both(("For example", "E.g."), ("By way of illustration",)),
    "gives": _both(("yields", "returns", "produces"), ("results in",)),
    "serves": _both(("exposes", "publishes"), ("makes available",)),
    "offers": _both(("provides", "exposes"), ("has",)),
    "an answer that begins with": _both(("a reply that starts with", "a result opening with"), ("output starting by",)),
    "is raised": _both(("is thrown", "becomes an exception"), ("is signalled",)),
    "so that the client sees": _both(("so the caller notices", "so that the consumer gets"), ("so the user finds",)),
}
_PLAIN = {
    "It converts": _both(("It translates", "It transforms"), ("It changes",)),
    "turns": _both(("transforms", "translates"), ("changes",)),
    "converter": _both(("translator", "transformer"), ("changer",)),
    "The tool": _both(("The function", "The utility"), ("The routine",)),
    "between": _both(("among",), ("amongst",)),
    "I want": _both(("I wish for", "We require"), ("I am after",)),
    "Always give": _both(("Always return", "Invariably print"), ("At all times show",)),
    "decimals": _both(("decimal places", "fractional digits"), ("decimal figures",)),
    "decimal": _both(("decimal place", "fractional digit"), ("decimal figure",)),
    "The answer has": _both(("The result shows", "The reply contains"), ("The output carries",)),
    "digits after the point": _both(("figures behind the point", "decimal places"), ("places past the point",)),
    "Any other unit is answered with": _both(
        ("Every different unit results in", "Foreign units get"), ("Others meet",)
    ),
    "Say": _both(("Reply", "Return"), ("State",)),
    "for other units": _both(("for different units", "on foreign units"), ("on any others",)),
    "A value below zero": _both(("A number under 0", "A quantity less than zero"), ("A figure lower than 0",)),
    "Refuse negatives with": _both(("Reject minus values with", "Decline negative numbers by"), ("Deny minuses with",)),
    "It applies": _both(("It performs", "It executes"), ("It runs",)),
    "to a text": _both(("on a string", "to a piece of writing"), ("on a passage",)),
    "in this order": _both(("in this sequence", "in that succession"), ("in the said sequence",)),
    "A text goes through": _both(("A string passes through", "A string undergoes"), ("A passage sees",)),
    "one after the other": _both(("one by one", "in succession"), ("in turn",)),
    "The steps on the text are": _both(("The operations on the string are", "The actions are"), ("The stages are",)),
    "in order": _both(("in sequence", "successively"), ("in turn",)),
    "A blank text": _both(("An empty string", "A void string"), ("A passage of blanks",)),
    "Answer a text without any word by": _both(("Reply to a string with no word by",), ("Meet wordless passages by",)),
    "A longer text": _both(("A lengthier string", "Any string above that size"), ("A passage beyond",)),
    "Beyond the limit": _both(("Past the maximum", "Above the bound"), ("Over the top",)),
    "say": _both(("reply", "return"), ("state",)),
    "It computes": _both(("It calculates", "It evaluates"), ("It determines",)),
    "The formula is": _both(("The equation is", "The expression is"), ("The calculation is",)),
    "works out": _both(("calculates", "figures out", "determines"), ("finds",)),
    "Dividing by zero": _both(("Division by 0", "A zero denominator"), ("Splitting by nil",)),
    "If a divisor is zero answer": _both(("When a denominator is 0 reply",), ("Where a denominator is nil respond",)),
    "A negative": _both(("A below-zero", "A minus"), ("A sub-zero",)),
    "Refuse": _both(("Reject", "Decline"), ("Deny",)),
    "below zero": _both(("under 0", "less than zero"), ("lower than 0",)),
}
_CODES = {
    "It checks a code": _both(("It inspects a code", "It tests a code"), ("It examines a code",)),
    "answers": _both(("replies", "returns"), ("responds",)),
    "when every rule holds": _both(
        ("if all requirements are met", "when each condition is fulfilled"), ("if all fits",)
    ),
    "validates": _both(("verifies", "inspects"), ("examines",)),
    "the answer is": _both(("the result is", "the reply is"), ("the output is",)),
    "the first error": _both(("the first fault", "the earliest problem"), ("the first failure",)),
    "Codes are checked rule by rule": _both(
        ("Codes are tested condition by condition",), ("Codes are examined one point after another",)
    ),
    "a good one": _both(("a valid one", "a correct one"), ("a proper one",)),
    "Blank": _both(("Empty", "Nothing there"), ("Void",)),
    "It must start with": _both(("It has to begin with", "It needs to open with"), ("It ought to commence with",)),
    "It must hold": _both(("It has to contain", "It needs to include"), ("It ought to have",)),
    "else": _both(("otherwise", "if not"), ("failing that",)),
    "The last character": _both(("The final character", "The closing symbol"), ("The end character",)),
    "At least": _both(("A minimum of", "No fewer than"), ("Not under",)),
    "A longer one": _both(("A lengthier one", "One above that"), ("One beyond",)),
}
_TABLES = {
    "It groups the rows of a table by": _both(
        ("It bundles the records of a table by",), ("It clusters a table's lines by",)
    ),
    "of each group": _both(("of every bundle", "per group"), ("of any cluster",)),
    "For every": _both(("For each", "Per"), ("For any",)),
    "it gives": _both(("it returns", "it reports"), ("it states",)),
    "It gives": _both(("It returns", "It reports"), ("It states",)),
    "the sum of": _both(("the total of", "the added-up"), ("the grand total of",)),
    "the mean of": _both(("the average of", "the average"), ("the arithmetic mean of",)),
    "the smallest": _both(("the lowest", "the least"), ("the minimum",)),
    "the largest": _both(("the highest", "the greatest"), ("the maximum",)),
    "the number of rows": _both(("the count of records", "how many records there are"), ("the row count",)),
    "It lists": _both(("It enumerates", "It shows"), ("It sets out",)),
    "a header line": _both(("a heading line", "a title line"), ("a caption line",)),
    "cells": _both(("values", "entries"), ("boxes",)),
    "skip blank lines": _both(("ignore empty lines", "pass over empty lines"), ("omit void lines",)),
    "Spaces around a cell do not belong to it": _both(("Blanks around a value are no part of it",), ("Trim boxes",)),
    "Columns are found by their names": _both(
        ("Columns are located by their titles",), ("Columns are known by captions",)
    ),
    "Only rows with": _both(("Only records having", "Just records with"), ("Solely lines with",)),
    "Take only the rows with": _both(
        ("Use just the records with", "Consider only records having"), ("Keep lines with",)
    ),
    "Keep them in the order in which they first appear": _both(
        ("Leave them in the sequence in which they first occur",), ("Retain their first-seen sequence",)
    ),
    "Sort them by": _both(("Order them by", "Arrange them by"), ("Rank them by",)),
    "from A to Z": _both(("alphabetically", "in alphabetical sequence"), ("ascending alphabetically",)),
    "The smallest number comes first": _both(
        ("The lowest figure leads", "The least one is on top"), ("Minimum first",)
    ),
    "The largest number comes first": _both(("The highest figure leads", "The greatest is on top"), ("Maximum first",)),
    "on a tie": _both(("on a draw", "with equal figures"), ("if equal",)),
    "first in the alphabet": _both(("earliest alphabetically", "alphabetically first"), ("nearest to A",)),
    "the one that appears first": _both(("the one occurring earliest", "the one seen first"), ("the earlier one",)),
    "are written": _both(("are printed", "are output"), ("are shown",)),
    "Write only the": _both(("Print just the", "Output merely the"), ("Show nothing but the",)),
    "of each": _both(("of every one", "for all"), ("of all",)),
    "on lines of their own": _both(("on separate lines", "one per line"), ("a line each",)),
    "joined by": _both(("separated by", "linked by", "connected by"), ("combined through",)),
    "Write numbers with exactly": _both(
        ("Print figures with precisely", "Output numbers with just"), ("Show figures at",)
    ),
    "rounded": _both(("rounded off", "after rounding"), ("in rounded form",)),
    "If no row is left": _both(("If no record remains", "When nothing remains"), ("With no line left",)),
    "Errors, checked in this order": _both(("Faults, tested in this sequence",), ("Failures, tried one by one",)),
    "First check, in this order": _both(("To begin with test, in this sequence",), ("Beforehand try, one by one",)),
    "a needed column is not there": _both(
        ("a required column is missing", "a required column is absent"), ("a necessary column lacks",)
    ),
    "lacks a needed field": _both(("is without a required field", "misses a required field"), ("has not every field",)),
    "has more or fewer cells than its header": _both(
        ("has more or fewer values than the heading",), ("has another width",)
    ),
}
_SERVICES = {
    "It searches these notes": _both(
        ("It looks through these memos", "It scans these notes"), ("It goes through these notes",)
    ),
    "finds the best of these notes": _both(
        ("picks the best of these memos", "selects the top notes"), ("retrieves the best among these notes",)
    ),
    "for a query": _both(("for a search phrase", "for a question"), ("on a search",)),
    "Given a query, it ranks": _both(("Given a search phrase, it sorts",), ("On a search, it arranges",)),
    "Terms of a query or a note": _both(
        ("Tokens of a query or a memo", "Words of a query or a note"), ("Units of text",)
    ),
    "To get the terms of a text": _both(("To obtain the tokens of a string",), ("To derive the units of a text",)),
    "Query and notes are made into terms alike": _both(
        ("Query and memos become tokens alike",), ("Both become units",)
    ),
    "lower case": _both(("small letters", "lowercase"), ("no capitals",)),
    "split at": _both(("cut at", "divide at"), ("part at",)),
    "leave out": _both(("omit", "ignore"), ("drop",)),
    "drop one final": _both(("remove one last", "strip a trailing"), ("cut a closing",)),
    "The score is": _both(("The rating is", "The points are"), ("The mark is",)),
    "how often": _both(("how many times", "the number of times"), ("the times",)),
    "Name at most": _both(("List at most", "Return up to"), ("Mention at most",)),
    "the highest first": _both(("in descending sequence", "top one first"), ("from the top",)),
    "with equal scores": _both(("with the same rating", "on equal points"), ("at equal marks",)),
    "Write each as": _both(("Print each as", "Format each as"), ("Show each as",)),
    "It asks": _both(("It queries", "It calls"), ("It contacts",)),
    "sends": _both(("issues", "performs"), ("makes",)),
    "it requests": _both(("it fetches", "it retrieves"), ("it loads",)),
    "the reply": _both(("the response", "the result"), ("the return",)),
    "is a list of objects": _both(("is an array of objects", "holds a list of objects"), ("lists objects",)),
    "percent-encoded": _both(("URL-encoded", "URL-escaped"), ("escaped with percent signs",)),
    "Percent-encode": _both(("URL-encode", "URL-escape"), ("Escape with percent signs",)),
    "Values in braces": _both(("Values in curly brackets", "Placeholders"), ("What is in braces",)),
    "the values in braces": _both(("the values in curly brackets", "the placeholders"), ("what is in braces",)),
    "the parameters": _both(("the query parameters", "the URL parameters"), ("the arguments",)),
    "Take": _both(("Pick", "Extract"), ("Read",)),
    "an empty list": _both(("a list with nothing in it", "a list of none"), ("a void list",)),
    "Status 404": _both(("HTTP 404", "Code 404"), ("A 404",)),
    "status": _both(("HTTP status", "code"), ("return code",)),
    "any other status but 200": _both(("every other code except 200", "each code other than 200"), ("codes save 200",)),
    "a body that is not JSON": _both(("content that isn't JSON", "a body that is no JSON"), ("non-JSON content",)),
    "when the body is not JSON": _both(
        ("if the content isn't JSON", "if the body is no JSON"), ("on non-JSON content",)
    ),
    "A timeout": _both(("Running out of time (timeout)", "A time-out"), ("Waiting past the timeout",)),
    "a failed connection": _both(("a broken connection", "a connection that fails"), ("a connection breakdown",)),
    "the answer for one reply": _both(
        ("the result for one response", "the text for one response"), ("one reply's text",)
    ),
    "path and query of the first request": _both(("path plus query of the first call",), ("first path with query",)),
}
SYNONYMS = {**_PROJECT, **_PLAIN, **_CODES, **_TABLES, **_SERVICES}
