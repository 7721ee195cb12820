"""How tests/experiments runs its scenes and puts their figures in order; nothing is sent here."""

from __future__ import annotations

import pytest

from tests.experiments.__main__ import in_order
from tests.experiments.report import Sheet, Verdict
from tests.experiments.scene import FULL, QUICK, Experiment, Scene, Stage, play


def a_scene(name: str, *, fails: bool = False) -> Scene:
    async def run(_stage: Stage, sheet: Sheet) -> None:
        sheet.exactly("figure", 1, 1)
        if fails:
            raise RuntimeError("out of order\nand more")

    return Scene(name=name, run=run, about_s=(1, 1))


@pytest.mark.asyncio
async def test_a_scene_that_breaks_off_is_a_missed_figure_beside_those_it_had() -> None:
    experiment = Experiment(name="E0", title="", reference=(), scenes=())
    figures = await play(a_scene("s", fails=True), experiment, Stage("", "", QUICK))
    assert [(f.verdict, f.measured) for f in figures] == [
        (Verdict.REACHED, "1"),
        (Verdict.MISSED, "RuntimeError: out of order"),
    ]


@pytest.mark.asyncio
async def test_references_stand_before_ours_and_scenes_in_their_order_whatever_ended_first() -> None:
    scenes = (a_scene("first"), a_scene("second"))
    experiment = Experiment(name="E0", title="", reference=(("others", "requests", "27"),), scenes=scenes)
    stage = Stage("", "", FULL)
    done = {(experiment, scene): await play(scene, experiment, stage) for scene in reversed(scenes)}
    figures = in_order([(experiment, scene) for scene in scenes], done)
    assert [f.scene for f in figures] == ["others", "first", "second"]
    assert figures[0].verdict is Verdict.REFERENCE
