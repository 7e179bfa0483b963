# ruff: noqa: E501 - a sentence is one line
"""Sentences of the tuning twin: for each slot, frames with alternatives in `[a|b]`, at least six sentences a slot.

No frame is one of the training generator's, nor of the test twin's. Does not: hold a literal of any task.
"""

TERMS = {
    "and": "plus",
    "or": "or else",
    "tab": "one tab",
    "sum": "the total over `{value}`",
    "mean": "the arithmetic mean over `{value}`",
    "min": "the minimum of `{value}`",
    "max": "the maximum of `{value}`",
    "count": "the row count",
    "tie key": "draws are settled alphabetically through `{key}`",
    "tie row": "draws are settled through which one is nearer the table's top",
    "newline": "a line break after each but the last",
    "joined": "`{joiner}` as glue",
    "error: bad json": "not a JSON list full of objects",
    "empty list": "list of length zero",
    "empty table": "headings missing, or nothing but headings",
    "error: missing column": "a column that this uses is absent",
    "error: missing field": "a field that this uses is absent in an object",
    "error: ragged row": "a row longer or shorter than the headings",
    "error: bad number": "no valid number below {numbers} in a row, counted or not",
    "lower": "make it lowercase",
    "split spaces": "divide it by spaces",
    "split letters": "divide it at any non-letter (letters being a-z)",
    "stop": "throw away {words}",
    "plural": "strip a final `s` (one only) off terms with at least four letters",
    "repeats once": "a term typed twice matters once",
    "repeats each": "a term typed twice matters twice",
    "legend": "ln: logarithm to base e; tf: times the term is in the note; N: how many notes exist; df: notes having it",
    "legend bm25": "; len: terms in the note; avg: average len; k1: {k1}; b: {b}",
    "ascending": "among equals prefer the small id",
    "descending": "among equals prefer the big id",
    "corpus": "among equals prefer the note higher up in my list",
    "of each": "out of every object",
    "of it": "out of the object",
}

COMMON = {
    "opening": (
        "[Kindly|Please] generate the agent package `{package}` (NeMo Agent Toolkit).",
        "`{package}`: that's the package of the NAT agent I'm [after|missing].",
        "New project for the NeMo Agent Toolkit; its package [shall be|goes by] `{package}`.",
    ),
    "naming": (
        "Component `{type}`, [used|listed] in the configuration under `{instance}`.",
        "The configuration has an item `{instance}` [of|built on] component `{type}`.",
        "[Have|Let] `{instance}` stand in the configuration, and register `{type}` for it.",
    ),
    "inputs": (
        "[Its arguments are|One passes] {inputs}.",
        "{inputs} [are|will be] passed by the caller.",
        "[Called through|Invoked using] {inputs}.",
    ),
    "setting": (
        "[Offer|Provide] a parameter `{field}` in the configuration, {default} at first, never below {low} or above {high}.",
        "`{field}` is configurable from {low} up to {high} [and|but] begins as {default}.",
        "The configuration may [set|change] `{field}` (min {low}, max {high}, preset {default}).",
    ),
    "example": (
        "[Passing|Entering] {given} produces {answer}.",
        "{given} [becomes|turns into] {answer}.",
        "[Test|Demo] case: for {given} it says {answer}.",
    ),
    "server": (
        "[Offer|Publish] `{instance}` through an MCP server `{server}` too (stdio, mcp_server.py).",
        "There's an MCP server, `{server}`, in mcp_server.py; [its|the] stdio clients see `{instance}`.",
        "[Make|Turn] mcp_server.py a stdio server `{server}` having the tool `{instance}`.",
    ),
    "raises": (
        "The server [throws|fails on] every text beginning by `error`: `isError` is what its clients get.",
        "[Give|Send] MCP clients `isError` for any text with `error` up front.",
        "Texts beginning by `error` go to MCP clients [as failures|flagged], that is, by `isError`.",
    ),
}

SIMPLE = {
    "units": (
        "[Handle|Do] {dimension} conversions among {units}.",
        "From {units}, any {dimension} must be [convertible|expressible] into any other.",
        "A converter for {dimension}, [where units are|units being] {units}.",
    ),
    "digits": (
        "{digits} decimal place(s)[| in every result].",
        "Results are [cut and rounded|rounded] to {digits} place(s).",
        "Every result carries {digits} decimal place(s)[|, never another number of them].",
    ),
    "unknown_unit": (
        "`{error}` [goes with|belongs to] unsupported units.",
        "A unit not among these? [Then|So] `{error}`.",
        "[Reject|Turn down] foreign units by `{error}`.",
    ),
    "negative_value": (
        "`{error}` [goes with|belongs to] amounts under zero.",
        "An amount under zero? [Then|So] `{error}`.",
        "[Reject|Turn down] amounts under zero by `{error}`.",
    ),
    "steps": (
        "[Chain|Combine] {steps} on whatever string arrives, first one first.",
        "Strings are [processed|transformed] by {steps}, one by one.",
        "The operations {steps} are [executed|run] on the string in sequence.",
    ),
    "empty_text": (
        "`{error}` [goes with|belongs to] strings without visible characters.",
        "Only blanks, or nothing? [Then|So] `{error}`.",
        "[Reject|Turn down] blank strings by `{error}`.",
    ),
    "long_text": (
        "`{error}` [goes with|belongs to] strings past the maximum.",
        "Longer than permitted? [Then|So] `{error}`.",
        "[Reject|Turn down] overlong strings by `{error}`.",
    ),
    "formula": (
        "[Output|Deliver] {formula}.",
        "Its value is that of {formula}[|, as a decimal].",
        "The job's maths is {formula}[| and that alone].",
    ),
    "zero": (
        "`{error}` [goes with|belongs to] divisions that can't be made because of a zero.",
        "Zero underneath? [Then|So] `{error}`.",
        "[Reject|Turn down] divisions by nothing with `{error}`.",
    ),
    "negative_input": (
        "`{error}` [goes with|belongs to] `{name}` lower than zero.",
        "`{name}` lower than zero? [Then|So] `{error}`.",
        "[Reject|Turn down] `{name}` lower than zero by `{error}`.",
    ),
    "codes": (
        "Look codes over, [criterion by criterion|one criterion at a time], top down: `ok`, or the text of the earliest one violated.",
        "A code earns `ok` by meeting the criteria that [follow|come now]; else give the earliest violation, top down.",
        "[Approve|Accept] a code through `ok`, or give the text of the earliest criterion (top down) it violates.",
    ),
    "code_not_blank": (
        "Blank codes violate [this|it]: `{error}`.",
        "`{error}` [marks|stands for] a blank.",
        "[Must|Has to] contain something (`{error}`).",
    ),
    "code_prefix": (
        "A start by anything except `{value}` violates [this|it]: `{error}`.",
        "`{error}` [marks|stands for] a start that isn't `{value}`.",
        "[Must|Has to] open on `{value}` (`{error}`).",
    ),
    "code_mark": (
        "Absence of `{value}` violates [this|it]: `{error}`.",
        "`{error}` [marks|stands for] absence of `{value}`.",
        "[Must|Has to] include `{value}` (`{error}`).",
    ),
    "code_ending": (
        "A last position not held by {value} violates [this|it]: `{error}`.",
        "`{error}` [marks|stands for] a last position not held by {value}.",
        "[Must|Has to] close on {value} (`{error}`).",
    ),
    "code_min_length": (
        "A length under {value} violates [this|it]: `{error}`.",
        "`{error}` [marks|stands for] a length under {value}.",
        "[Must|Has to] be {value} long or longer (`{error}`).",
    ),
    "code_max_length": (
        "A length past the configured one violates [this|it]: `{error}`.",
        "`{error}` [marks|stands for] a length past the configured one.",
        "[Must|Has to] respect the configured length (`{error}`).",
    ),
}

TABLES = {
    "table_each": (
        "[Compute|Determine] {what} separately by `{key}` of a table.",
        "A table's rows, [bundled|collected] by `{key}`: {what} of a bundle.",
        "[Show|Find] {what} `{key}` by `{key}` in a table.",
    ),
    "table_alone": (
        "[Compute|Determine] {what} of a table.",
        "A table's {what}[| in total]: nothing else is asked.",
        "[Show|Find] {what}, all of a table considered.",
    ),
    "table_list": (
        "[Compute|Determine] nothing, just give `{key}` along with `{value}` by row of a table.",
        "A table's rows, [each one|one by one]: its `{key}`, its `{value}`.",
        "[Show|Find] `{key}` along with `{value}` in a table's rows.",
    ),
    "table_csv": (
        "`table` consists of headings on line 1 and rows [below|after it]; cells end at {divider}; blank lines count for nothing.",
        "The text `table` has headings, then rows, [divided|cut] by {divider}, perhaps with blank lines to be passed over.",
        "Take `table` apart at line breaks, then at {divider}: headings, rows; blank lines are [nothing|no rows].",
    ),
    "table_trim": (
        "Blanks at a cell's edges [are void|count for nothing].",
        "[Shave|Strip] blanks off the edges of cells.",
        "A cell's value has no blanks at its edges[|: strip them].",
    ),
    "table_names": (
        "[Find|Locate] a column through its heading.",
        "Headings tell which column is which[|, not places].",
        "Columns may be shuffled: [trust|read] the headings.",
    ),
    "table_json": (
        "`table`: JSON text, objects in a list[|, a row each].",
        "A JSON list of row objects is [passed|given] through `table`.",
        "[Decode|Load] `table` from JSON to obtain the objects, listed, that are the rows.",
    ),
    "table_filter": (
        "[Disregard|Skip] any row that fails `{condition}`.",
        "Condition for a row to [matter|be used]: `{condition}`.",
        "Use rows satisfying `{condition}`[|, no others].",
    ),
    "order_appearance": (
        "The table's own sequence of first mentions [is kept|stays].",
        "First mentioned, first [given|output].",
        "[Retain|Preserve] the sequence of first mentions.",
    ),
    "order_key": (
        "In the output `{key}` [rises|goes] alphabetically.",
        "Alphabetise by `{key}`[| before output].",
        "[Put|Bring] `{key}` into alphabetical sequence.",
    ),
    "order_key_rows": (
        "In the output `{key}` [rises|goes] alphabetically, equal ones keep their rows' sequence.",
        "Alphabetise by `{key}`[| before output] without reshuffling equal ones.",
        "[Put|Bring] `{key}` into alphabetical sequence without reshuffling equal ones.",
    ),
    "order_up": (
        "In the output numbers [rise|go up]; {tie}.",
        "Minimum on top, maximum [at the bottom|last]; {tie}.",
        "[Put|Bring] it into rising sequence of numbers; {tie}.",
    ),
    "order_down": (
        "In the output numbers [fall|go down]; {tie}.",
        "Maximum on top, minimum [at the bottom|last]; {tie}.",
        "[Put|Bring] it into falling sequence of numbers; {tie}.",
    ),
    "table_top": (
        "{top} entries [suffice|are enough], drop the rest.",
        "[Output|Print] {top} entries at most.",
        "Limit output to {top} entries[|, from the top].",
    ),
    "table_pairs": (
        "[Output|Print] `{shape}` by entry, {between}.",
        "Each becomes `{shape}`, [all of it|then everything] combined, {between}.",
        "`{shape}` is how one reads, and [with|for] several: {between}.",
    ),
    "table_keys": (
        "[Output|Print] nothing except `{key}` by entry, {between}.",
        "Each becomes its `{key}` (the number stays out), [all of it|then everything] combined, {between}.",
        "`{key}` by itself is how one reads, and [with|for] several: {between}.",
    ),
    "table_digits": (
        "A number gets {digits} decimal place(s)[| after rounding].",
        "Numbers: {digits} decimal place(s), [rounded|neither more nor fewer].",
        "[Format|Round] numbers to {digits} decimal place(s).",
    ),
    "table_none": (
        "All rows gone? [Output|Print] `none`.",
        "`none` [stands for|signals] an outcome without rows.",
        "An outcome without rows [reads|is] `none`.",
    ),
    "table_errors": (
        "Complaints, the earlier [ones first|before the later]: {errors}.",
        "[Reject|Turn down] input up front, looking for these one by one: {errors}.",
        "Input [problems|faults] with their texts, by precedence: {errors}.",
    ),
}

NOTES = {
    "notes": (
        "[Enable|Offer] queries on this corpus, rows of id and content: {notes}.",
        "Corpus (id, then content): {notes}; it's [queried|searched] by users.",
        "A user [queries|asks], you look into {notes}, id to the left.",
    ),
    "terms": (
        "[Normalise|Convert] query plus notes into terms: {steps}.",
        "Terms come about [so|like this]: {steps}.",
        "Words to terms, [both sides|for both]: {steps}.",
    ),
    "score_distinct": (
        "A note's score counts which query terms it has, [each a single time|no term twice].",
        "Score: [number|amount] of the query's terms, without duplicates, present in a note.",
        "Distinct terms shared by query plus note [form|give] the score.",
    ),
    "score_count": (
        "A note's score [sums|totals] how frequent each query term is there; {repeats}.",
        "Score: [summed|total] frequency of the query's terms in a note; {repeats}.",
        "Frequencies of query terms in a note [form|give] the score when totalled; {repeats}.",
    ),
    "score_formula": (
        "A note's score [sums|totals] `{formula}` across query terms present in it; {repeats}. {legend}.",
        "Score: [summed|total] `{formula}` of the query's terms present in a note; {repeats}. {legend}.",
        "Values `{formula}` of query terms present in a note [form|give] the score when totalled; {repeats}. {legend}.",
    ),
    "best_notes": (
        "[Output|Name] {count} notes or fewer, score falling, only scores over zero; {tie}.",
        "The leading {count} notes by score [qualify|count], unless at zero; {tie}.",
        "By falling score, [keep|take] {count} notes whose score isn't zero; {tie}.",
    ),
    "note_shape": (
        "[Output|Print] `{shape}` by note, glue `{separator}`.",
        "Each note found becomes `{shape}`, [all|everything] combined through `{separator}`.",
        "`{shape}` is how one reads, and `{separator}` [parts|divides] several.",
    ),
    "note_digits": (
        "A score gets {digits} decimal place(s)[| after rounding].",
        "Scores: {digits} decimal place(s), [rounded|neither more nor fewer].",
        "[Format|Round] scores to {digits} decimal place(s).",
    ),
    "note_errors": (
        "`{empty}` [stands for|signals] a query that has no term, `{no_hit}` an outcome without notes.",
        "Termless query? [Then|So] `{empty}`. Outcome without notes? `{no_hit}`.",
        "[Reject|Turn down] termless queries by `{empty}`, fruitless ones by `{no_hit}`.",
    ),
}

API = {
    "api_get": (
        "[Wrap|Consult] the endpoint `{url}` by httpx.AsyncClient.",
        "Behind it is `{url}`, [accessed|read] by httpx.AsyncClient.",
        "An HTTP call to `{url}` [is made|happens], by httpx.AsyncClient.",
    ),
    "api_object": (
        "That [yields|delivers] an object (JSON).",
        "Response: JSON, [an object|one object].",
        "The response body [decodes|parses] to an object.",
    ),
    "api_list": (
        "That [yields|delivers] an object (JSON) whose key `{items}` has the list of objects.",
        "Response: JSON, [objects|the objects] listed at `{items}`.",
        "The response body [decodes|parses] to an object, list of objects at `{items}`.",
    ),
    "api_encode": (
        "Braces are [placeholders|filled in]: escape by percent signs in UTF-8, `/` not exempt; never shuffle parameters.",
        "Escape placeholders by percent signs [(UTF-8, even `/`)|(UTF-8, `/` not exempt)], never shuffling parameters.",
        "[Apply|Use] percent escapes on placeholders, UTF-8, with `/` escaped, and never shuffle parameters.",
    ),
    "api_field": (
        "Output is {fields} {whose}[|, alone].",
        "[Select|Choose] {fields} {whose}.",
        "[Show|Deliver] {fields} {whose}.",
    ),
    "api_fields": (
        "Output is {fields} {whose}, [so ordered|ordered like that], glue `{between}`.",
        "[Select|Choose] {fields} {whose}, so ordered, glued by `{between}`.",
        "[Show|Deliver] {fields} {whose}, so ordered, `{between}` dividing them.",
    ),
    "api_join": (
        "Glue objects by `{joiner}`; [zero|no] objects make `{nothing}`.",
        "`{joiner}` [parts|divides] objects, `{nothing}` stands for zero of them.",
        "Zero objects: `{nothing}`; several: [divide|part] them by `{joiner}`.",
    ),
    "api_status": (
        "`{not_found}` [belongs to|goes with] 404, `{failed}` to statuses that are neither 404 nor 200, `{not_json}` to bodies failing to parse.",
        "404? `{not_found}`. [Neither that nor 200|Not 200 either]? `{failed}`. Body fails to parse as JSON? `{not_json}`.",
        "[Map|Translate] 404 to `{not_found}`, remaining statuses save 200 to `{failed}`, bodies failing to parse as JSON to `{not_json}`.",
    ),
    "api_timeout": (
        "`{timeout}` [belongs to|goes with] timeouts.",
        "No response in time? [Then|So] `{timeout}`.",
        "[Map|Translate] timeouts to `{timeout}`.",
    ),
    "api_both": (
        "`{timeout}` [belongs to|goes with] timeouts, broken connections too.",
        "No response in time, or no connection? [Then|So] `{timeout}`.",
        "[Map|Translate] timeouts plus broken connections to `{timeout}`.",
    ),
    "api_two": (
        "`{timeout}` [belongs to|goes with] timeouts, `{connection}` to broken connections.",
        "No response in time? [Then|So] `{timeout}`. No connection? `{connection}`.",
        "[Map|Translate] timeouts to `{timeout}`, broken connections to `{connection}`.",
    ),
    "api_logic": (
        "Pure parts in logic.py: `{path}` [composes|creates] path plus query; `{read}` judges a response.",
        "logic.py [supplies|offers] `{path}`, that is path plus query, next to `{read}`, the output by response.",
        "[Write|Place] into logic.py `{path}` creating path plus query, next to `{read}` judging a response.",
    ),
}
