"""A pipeline and a moment in, both ways back out: nothing is changed, and no JVM is started.

**1** see what there is: checkpoint, archive, broker; **2** the first batch from the moment on;
**3** the event times that are wrong; **4** what each way takes; **5** which one to take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from ebbtide.advice.affected import find_wrong
from ebbtide.advice.inputs import look
from ebbtide.advice.onset import find_moment
from ebbtide.advice.options import Ways
from ebbtide.advice.recommendation import add_caveats, recommend
from ebbtide.advice.reprocess_option import cost_reprocess
from ebbtide.advice.rewind_option import cost_rewind
from ebbtide.config import Settings
from ebbtide.pipeline import Pipeline


def find_ways(
    pipeline: Pipeline,
    settings: Settings,
    at: datetime,
    *,
    event_time: bool = False,
    checkpoint: str | None = None,
    reference: str | None = None,
    flags: Mapping[str, str] | None = None,
    on_read: Callable[[int], None] = lambda _records: None,
) -> Ways:
    """Both ways back from results that are wrong since `at`.

    `at` is processing time: when the wrong code or data began to run; with `event_time`, the first
    wrong event time. `reference` and `flags` are what was typed, for the lines to type next.
    """
    location = checkpoint or str(settings.checkpoint(pipeline.name))
    # 1
    scene = look(pipeline, settings, location, reference or pipeline.name, flags or {})
    # 2
    moment = find_moment(scene, at, by_event_time=event_time, on_read=on_read)
    # 3
    wrong = find_wrong(scene, moment)
    # 4
    rewind = cost_rewind(scene, moment)
    reprocess = cost_reprocess(scene, wrong)
    # 5
    recommended, reason = recommend(rewind, reprocess, wrong)
    return Ways(
        pipeline=pipeline.name,
        checkpoint=location,
        since=at,
        clock="event time" if event_time else "processing time",
        zone=settings.timezone,
        first_batch=moment.batch,
        found=moment.found,
        span=wrong.span,
        span_found=wrong.found,
        rewind=rewind,
        reprocess=reprocess,
        recommended=recommended,
        reason=reason,
        caveats=add_caveats(recommended, rewind, reprocess, wrong),
    )
