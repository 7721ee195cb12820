"""What can safely be done about a dead letter, in words. Pure."""

from __future__ import annotations

from typing import Final

from delivery.model import DeadLetterReason, Outcome
from delivery.policy.letters import Letter

_UNAUTHORISED: Final = (401, 403)
_GONE: Final = (404, 410)
_TOO_MANY: Final = 429
_OTHERS: Final = {
    DeadLetterReason.EXHAUSTED: "Every attempt failed. See that the endpoint answers again.",
    DeadLetterReason.EXPIRED: "It became too old before it was delivered. Sent again, its age counts anew.",
    DeadLetterReason.UNCONFIRMED: "It was sent and not confirmed, and this endpoint must not get it twice unasked.",
    DeadLetterReason.UNSENDABLE: (
        "No valid request can be made of it, or making one ended its worker: see the error. Sent again as it is, it "
        "will fail again until the settings or the program change."
    ),
    DeadLetterReason.UNQUEUEABLE: "It did not get into the queue: see the error, then `delivery check`.",
    DeadLetterReason.CANCELLED: "Somebody cancelled it: nothing is wrong with it.",
    DeadLetterReason.DRAINED: "Somebody drained the endpoint: nothing is wrong with it.",
}


def advice(letter: Letter, *, replayed: bool, configured: bool) -> list[str]:
    """The next steps, one line each, in their order. `configured`: its endpoint is in the settings."""
    if not letter.whole:
        where = "" if letter.source is None else f"; the event was at {letter.source}"
        return [f"It does not hold the whole event and cannot be sent again from here{where}."]
    again = f"delivery dead-letters replay --tenant {letter.kind.tenant} --id {letter.id}"
    if replayed:
        return [
            "It was sent again. If that failed too, there is a newer letter that names this one as its first.",
            f"To send it once more all the same: {again} --again",
        ]
    steps = [_cause(letter)]
    if letter.kind.outcome is Outcome.UNKNOWN:
        reference = "" if letter.receiver_ref is None else f" (its reference: {letter.receiver_ref})"
        steps.append(
            f"Whether the receiver acted on the last request is not known{reference}. Look for webhook-id "
            f"{letter.webhook_id} there first: sent again, it keeps that id."
        )
        if letter.kind.reason is not DeadLetterReason.UNCONFIRMED:
            again += " --outcome unknown"
    if letter.kind.reason is DeadLetterReason.UNCONFIRMED:
        again += " --reason unconfirmed"
    if not configured:
        steps.append(f"Its endpoint is not configured any more: {again} --to ENDPOINT sends it to another.")
    else:
        steps.append(f"Then: {again}")
    return steps


def _cause(letter: Letter) -> str:
    if letter.kind.reason is not None and letter.kind.reason is not DeadLetterReason.REJECTED:
        return _OTHERS[letter.kind.reason]
    if letter.kind.reason is None:
        return "Why it failed cannot be read."
    if letter.kind.status in _UNAUTHORISED:
        return f"The endpoint answered {letter.kind.status}: look at the signing secret and at the endpoint's headers."
    if letter.kind.status in _GONE:
        return f"The endpoint answered {letter.kind.status}: look at its URL."
    if letter.kind.status == _TOO_MANY:
        return "The endpoint answered 429: it gets more than it takes. Replay with --rate."
    if letter.kind.status is None:
        return "The endpoint refused it: see the error."
    return f"The endpoint refused it with {letter.kind.status}: its answer may say what is wrong with the event."
