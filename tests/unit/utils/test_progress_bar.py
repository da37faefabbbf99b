"""How far a long count is: lines where there is no terminal, with rate and time left, and never too many."""

import logging

from trainyard.utils import progress_bar


def test_now_and_then_a_line_says_how_far_it_is(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.INFO), progress_bar.counting("photos", 10_000, unit="images", done=4_000) as count:
        for _ in range(30):
            now[0] += 1
            count.add(100)
    assert [record.message for record in caplog.records] == [
        "photos: 5,100 of 10,000 images, 100 images/s, about 49 s left",
        "photos: 6,200 of 10,000 images, 100 images/s, about 38 s left",
    ]
