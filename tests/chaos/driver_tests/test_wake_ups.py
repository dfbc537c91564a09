"""The driver's thief: what it takes no worker gets, and what it puts back is what it took."""

from __future__ import annotations

import redis

from tests.chaos.driver.wake_ups import Thief, put_back
from tests.support.servers import RedisServer, wait_until

QUEUES = ["one", "two"]


def test_stolen_wake_ups_return_late_and_twice(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    client.lpush("one", "lay there already")
    thief = Thief(redis_server.url, QUEUES)
    for number in range(20):
        client.lpush("two", f"message {number}")
    sent = {("one", "lay there already"), *(("two", f"message {number}") for number in range(20))}
    wait_until(lambda: len(thief.taken) == len(sent), 10, "all messages to be taken")
    assert not client.exists(*QUEUES)
    thief.stop()
    client.lpush("two", "after it has stopped")
    assert set(thief.taken) == sent
    assert client.lrange("two", 0, -1) == ["after it has stopped"]
    client.delete("two")

    assert put_back(client, thief.taken, times=2) == 2 * len(sent)
    found = [(queue, message) for queue in QUEUES for message in client.lrange(queue, 0, -1)]
    assert sorted(found) == sorted([*sent, *sent])


def test_the_wake_up_thief_survives_an_outage(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    thief = Thief(redis_server.url, QUEUES)
    wait_until(lambda: client.info("clients")["blocked_clients"] > 1, 10, "it to ask")
    client.client_kill_filter(_type="normal", skipme=True)
    client.lpush("one", "afterwards")
    wait_until(lambda: thief.taken, 10, "it to ask again")
    thief.stop()
    assert thief.taken == [("one", "afterwards")]
