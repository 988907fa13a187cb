"""What a model is told beside the fact: why going on so will not help, and two or three ways on that can be taken.

One row for each kind of evidence. The ways fit the kind, can be reached from where the model is, and come before
anything is forbidden: what a model reads last it does first. Nothing here quotes arguments or results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Advice:
    """What to say about one kind of evidence.

    Attributes:
        why: Why the same again will not help; one sentence.
        ways: What can be done instead; one sentence that names two or three ways.
    """

    why: str
    ways: str


_EXPLAIN = "or answer with what you have and explain what is missing"

GENERAL = Advice(
    "Repeating it will not change that.",
    f"Try another way: other arguments, another tool or a smaller step; {_EXPLAIN}.",
)
"""For evidence without a row of its own, such as a plugin's."""

ADVICE: Mapping[str, Advice] = MappingProxyType(
    {
        "repeated_call": GENERAL,
        "repeated_call.empty": Advice(
            "Repeating it will not change that: an empty result is an answer.",
            f"Take it as the answer, look for something else or somewhere else, {_EXPLAIN}.",
        ),
        "repeated_call.failed": Advice(
            "Repeating it will not change that: the same call fails in the same way.",
            f"Try another way: change what the error names, or use another tool; {_EXPLAIN}.",
        ),
        "repeated_call.transient": Advice(
            "Trying again at once meets the same trouble.",
            f"Wait before the next try, longer each time; do other work meanwhile; {_EXPLAIN}.",
        ),
        "repeated_call.mutation": Advice(
            "Repeating it will not change that: it was done the first time, and each repeat does it again.",
            "Go on with the next step, check the effect with a tool that reads, or tell the user that it is done.",
        ),
        "repeated_call.poll": Advice(
            "Asking more often does not make it finish sooner.",
            "Wait longer before you ask again, do other work meanwhile, or tell the user what is still running.",
        ),
        "repeated_call.check": Advice(
            "Nothing was changed since the last run, so it checks the same again.",
            f"Change what it complains about before the next run, read what it says, {_EXPLAIN}.",
        ),
        "repeated_call.status": Advice(
            "What it tells has not changed, and nothing says that it is about to.",
            f"Take it as the answer, wait longer before you look again, {_EXPLAIN}.",
        ),
        "repeated_call.picture": Advice(
            "The screen shows what it showed before.",
            f"Act on what it shows, look at another part of it, {_EXPLAIN}.",
        ),
        "repeated_call.changing": Advice(
            "Asking again gives yet another result.",
            f"Decide with one of the results you have, ask a narrower question, {_EXPLAIN}.",
        ),
        "cycle": Advice(
            "The same steps in the same order lead to the same place.",
            f"Leave out one of the steps, change what goes into it, or take another route; {_EXPLAIN}.",
        ),
        "cycle.figures": Advice(
            "Looking at the same things again shows that they are there.",
            f"Say what you make of what you have seen, change something before the next look, {_EXPLAIN}.",
        ),
        "cycle.poll": Advice(
            "What is waited for has not moved.",
            "Wait longer before you look again, do other work meanwhile, or tell the user what is still running.",
        ),
        "repeated_failure": Advice(
            "Other arguments do not remove the cause.",
            f"Read the error and remove what causes it, use another tool, {_EXPLAIN}.",
        ),
        "repeated_failure.varied": Advice(
            "Guessing at the arguments takes many rounds.",
            "Look up what the tool accepts, give every required field at once, or use another tool.",
        ),
        "repeated_failure.put_right": Advice(
            "Guessing at the arguments takes many rounds.",
            "Look up what the tool accepts, give every required field at once, or use another tool.",
        ),
        "repeated_failure.not_found": Advice(
            "What is looked for does not seem to be there.",
            f"List what there is, check the name with the user or another tool, {_EXPLAIN}.",
        ),
        "repeated_failure.transient": Advice(
            "Trying again at once meets the same trouble.",
            f"Wait before the next try, longer each time; do other work meanwhile; {_EXPLAIN}.",
        ),
        "repeated_failure.cross_tool": Advice(
            "One cause lies behind all of it, so another tool will fail too.",
            "Remove the cause if you can, go on with what does not need it, or tell the user what has to be put right.",
        ),
        "stagnation.near_identical": Advice(
            "The small changes make no difference to the result.",
            f"Change what the call is really about, use another tool, {_EXPLAIN}.",
        ),
        "stagnation.rephrased": Advice(
            "Saying it in other words does it again.",
            "Go on with the next step, check whether the first one arrived, or tell the user that it is done.",
        ),
        "stagnation.thought": Advice(
            "It is written down already, and thinking it again decides nothing.",
            f"Decide now, take the step that the thought names, {_EXPLAIN}.",
        ),
        "stagnation.same_result": Advice(
            "The arguments make no difference to the result.",
            f"Use the result you have, look somewhere else, {_EXPLAIN}.",
        ),
        "stagnation.nothing_new": Advice(
            "Going on like this uses up time and money and finds nothing.",
            f"Name what is still missing and the single step that would bring it, take that step, {_EXPLAIN}.",
        ),
        "stagnation.unmoved": Advice(
            "None of the changes in between touched its cause.",
            "Read what it says and find the line it is about before the next change, undo what did not help,"
            f" {_EXPLAIN}.",
        ),
        "stagnation.planning": Advice(
            "A plan moves nothing by itself.",
            f"Take its first step now, {_EXPLAIN}.",
        ),
        "stagnation.pages": Advice(
            "These parts were read before and have not changed.",
            f"Search for the place instead of paging, work from what you read, {_EXPLAIN}.",
        ),
        "stagnation.undo": Advice(
            "Each of the two versions was tried before.",
            "Find out what both need before the next edit, change another place, or tell the user why they conflict.",
        ),
        "stagnation.rewrite": Advice(
            "Writing the whole file again has not changed what the checks say.",
            "Read the failing check closely, change only the lines it is about, or tell the user what does not work.",
        ),
        "rephrased_search": Advice(
            "Other words for the same question find the same sources.",
            f"Open one of the results, ask about a part that is still missing, {_EXPLAIN}.",
        ),
        "rephrased_search.same_results": Advice(
            "The search has shown what it has.",
            f"Open one of the results, search somewhere else, {_EXPLAIN}.",
        ),
        "text_repetition": Advice(
            "Nothing new was being said.",
            "Go on after the repeated part in a few words, make the next call, or end with your conclusion.",
        ),
        "repeated_message": Advice(
            "Saying it again moves nothing.",
            "Make the call you speak of, do another step, or say what keeps you from it.",
        ),
        "repeated_message.reworded": Advice(
            "Saying it in other words moves nothing either.",
            "Do what you speak of now, use what was said in answer, or say plainly what keeps you from it.",
        ),
        "repeated_message.with_calls": Advice(
            "The calls bring nothing that was not there before.",
            f"Decide with what you know, take a different step, {_EXPLAIN}.",
        ),
        "repeated_message.empty": Advice(
            "An empty response moves nothing.",
            "Answer the user in words, or make one call.",
        ),
    }
)
"""By row of the ladder table; a kind without one uses its detector's."""


def advice_for(detector: str, kind: str | None) -> Advice:
    """The advice for one kind of evidence.

    Args:
        detector: Name of the detector.
        kind: Kind of its evidence, or what is known beside it.
    """
    return ADVICE.get(f"{detector}.{kind}") or ADVICE.get(detector, GENERAL)
