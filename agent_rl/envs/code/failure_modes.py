"""Why a code episode failed: rules over the programs it ran and the share of tests that the last one passes."""

from agent_rl.envs.failure_modes import OUT_OF_TURNS, FailureRule

CODE_RULES = (
    FailureRule("no program", "no program was run or submitted", lambda e: e.noted("programs") == 0),
    FailureRule("no test passes", "the last program passes no test", lambda e: e.share("tests") == 0.0),
    FailureRule("some tests fail", "the last program passes some tests", lambda e: e.share("tests") < 1.0),
    OUT_OF_TURNS,
)
