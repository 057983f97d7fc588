from __future__ import annotations

import asyncio

from hpsearch.backends.ray.mailbox import Heartbeat, Key, Mailbox
from hpsearch.events import Saved
from hpsearch.trial import Report

STUDY = "runs/x"
KEY = (STUDY, 3, 1)
REPORT = Report(3, 1, {"loss": 0.5}, 0.1)


def heartbeat(iteration: int = 1, saves: tuple[Saved, ...] = ()) -> Heartbeat:
    return Heartbeat("worker", KEY, (Report(3, iteration, {"loss": 0.5}, 0.1),), saves, None, ())


def asking(key: Key = KEY, worker: str = "worker") -> Heartbeat:
    return Heartbeat(worker, key, (), (), None, ())


async def all_wait() -> None:
    """Let every task of the loop go on until it waits for something."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_letters_are_collected_once_and_in_their_order():
    async def exchange() -> None:
        mailbox = Mailbox()
        for iteration in range(5):
            assert not (await mailbox.exchange(heartbeat(iteration))).cut
        assert [one.reports[0].iteration for one in await mailbox.collect(STUDY)] == [0, 1, 2, 3, 4]
        await mailbox.exchange(heartbeat(5))
        assert [one.reports[0].iteration for one in await mailbox.collect(STUDY)] == [5]

    asyncio.run(exchange())


def test_who_collects_is_woken_by_the_next_letter():
    async def wait() -> None:
        mailbox = Mailbox()
        collecting = asyncio.create_task(mailbox.collect(STUDY))
        await asyncio.sleep(0)
        assert not collecting.done()
        await mailbox.exchange(heartbeat())
        assert len(await collecting) == 1

    asyncio.run(wait())


def test_an_empty_letter_only_asks(monkeypatch):
    monkeypatch.setattr("hpsearch.backends.ray.mailbox._PATIENCE", 0.01)

    async def ask() -> None:
        mailbox = Mailbox()
        empty = asking()
        assert not (await mailbox.exchange(empty)).cut
        assert await mailbox.collect(STUDY) == []
        await mailbox.cut(KEY)
        assert (await mailbox.exchange(empty)).cut
        assert not (await mailbox.exchange(asking((KEY[0], 3, 2)))).cut  # another attempt
        assert not (await mailbox.exchange(asking(("runs/y", 3, 1)))).cut  # another study
        assert (
            await mailbox.exchange(Heartbeat("worker", KEY, (), (Saved(*KEY[1:], 1, "c", (REPORT,)),), b"packed", ()))
        ).cut
        assert [one.packed for one in await mailbox.collect(STUDY)] == [b"packed"]

    asyncio.run(ask())


def test_a_study_that_was_let_go_leaves_nothing(monkeypatch):
    async def let_go() -> None:
        mailbox = Mailbox()
        await mailbox.exchange(heartbeat())
        await mailbox.cut(KEY)
        await mailbox.clear(STUDY)
        collecting = asyncio.create_task(mailbox.collect(STUDY))
        await asyncio.sleep(0)
        assert not collecting.done()
        assert not (await mailbox.exchange(heartbeat(2))).cut
        assert [one.reports[0].iteration for one in await collecting] == [2]

    asyncio.run(let_go())


def test_who_still_waits_for_a_study_that_was_let_go_takes_nothing_of_the_next_one():
    async def let_go() -> None:
        mailbox = Mailbox()
        former = asyncio.create_task(mailbox.collect(STUDY))
        await all_wait()
        await mailbox.clear(STUDY)
        collecting = asyncio.create_task(mailbox.collect(STUDY))
        await all_wait()
        await mailbox.exchange(heartbeat(2))
        assert await former == []
        assert [one.reports[0].iteration for one in await collecting] == [2]

    asyncio.run(let_go())


def test_a_worker_is_told_once_what_to_take_back_and_says_what_it_took():
    async def recall() -> None:
        mailbox = Mailbox()
        behind = (KEY[0], 4, 1)
        await mailbox.recall("worker", behind)
        assert (await mailbox.exchange(asking(worker="another"))).recall == ()
        assert (await mailbox.exchange(asking())).recall == (behind,)
        assert (await mailbox.exchange(asking())).recall == ()
        await mailbox.exchange(Heartbeat("worker", KEY, (), (), None, (behind,)))
        assert [one.recalled for one in await mailbox.collect(STUDY)] == [(behind,)]

    asyncio.run(recall())


def test_a_study_has_nothing_of_another_one():
    """Two searches of a process share the mailbox; one that ends leaves the other what it wants and what came."""

    async def two() -> None:
        mailbox = Mailbox()
        other = ("runs/y", 3, 1)
        beside = Heartbeat("second", other, (Report(3, 7, {"loss": 0.5}, 0.1),), (), None, ())
        await mailbox.exchange(heartbeat(1))
        await mailbox.exchange(beside)
        assert [one.key for one in await mailbox.collect(STUDY)] == [KEY]
        await mailbox.cut(other)
        await mailbox.recall("second", other)
        await mailbox.recall("worker", KEY)
        await mailbox.clear(STUDY)
        assert [one.key for one in await mailbox.collect("runs/y")] == [other]
        reply = await mailbox.exchange(asking(other, "second"))
        assert (reply.cut, reply.recall) == (True, (other,))
        assert (await mailbox.exchange(asking())).recall == ()

    asyncio.run(two())


def test_an_exchange_that_is_sent_again_gets_the_same_replies_and_is_stored_once():
    async def again() -> None:
        mailbox = Mailbox()
        behind = (KEY[0], 4, 1)
        await mailbox.recall("worker", behind)
        replies = await mailbox.exchange_all(1, [heartbeat()])
        assert [reply.recall for reply in replies] == [(behind,)]
        assert await mailbox.exchange_all(1, [heartbeat()]) == replies
        assert [reply.recall for reply in await mailbox.exchange_all(2, [heartbeat()])] == [()]
        assert len(await mailbox.collect(STUDY)) == 2

    asyncio.run(again())
