"""Which slices a run has: taken whole, kept from one attempt to the next while they are intact."""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from launcher.cluster.hands import Agent, Hands, Held
from launcher.cluster.inventory import ClusterSlice, Wanted, pick
from launcher.cluster.settings import Settings
from launcher.cluster.speech import Speech
from launcher.supervise import Record
from torchtpu_dist.errors import LaunchError

_LOOK_S = 1.0


class NoCapacity(LaunchError):
    """The slices did not come in time."""


@dataclass
class Holding:
    """The slices of a run that needs ``wanted`` ones.

    Args:
        pause: waits for so many seconds; raises when the run is to stop.
    """

    wanted: Wanted
    hands: Hands
    settings: Settings
    speech: Speech
    record: Record
    pause: Callable[[float], None]
    _suspects: set[str] = field(default_factory=set)  # ids of nodes that were lost to us, whatever Ray says of them

    def reserve(self) -> tuple[Held, ...]:
        """The slices of an attempt, those that were kept first.

        Raises:
            NoCapacity: they were not to be had in time.
        """
        started_s, said_s = time.monotonic(), None
        least, most = self.settings.least, self.settings.most
        refused: dict[str, str] = {}
        while True:
            slices = self.hands.look()
            self._give_back_what_is_broken(slices)
            kept = [each.name for each in self.hands.held]
            found = pick(_without(slices, self._suspects), self.wanted, kept, least, most)
            if found.missing:  # better one that was lost before, with new agents, than none
                found = pick(slices, self.wanted, kept, least, most)
            refused_before = set(refused)
            if set(found.names) - set(kept):
                self.hands.demand.none()  # or we would wait for what we have asked for ourselves
            for each in slices:
                if each.name in found.names and each.name not in kept:
                    limit_s = self.settings.reserve_timeout_s
                    if self.hands.reserve(each, limit_s, lambda: self.pause(0.0)) is None:
                        refused[each.name] = "could not be reserved"
            for spare in self.hands.held[most:]:
                self.give_back(spare, "there are enough")
            held = tuple(self.hands.held)
            if len(held) >= least:
                self.hands.demand.none()
                return held
            if refused.keys() - refused_before:
                continue  # it broke a moment ago: there may be others
            waited_s, patience_s = time.monotonic() - started_s, self.settings.capacity_timeout_s
            words = self.speech.waiting(len(held), least, self.wanted, {**refused, **found.reasons}, waited_s)
            if patience_s is not None and waited_s > patience_s:
                raise NoCapacity(words)
            # Slices that were given back a moment ago are free in the next one: that is not worth a line.
            if waited_s >= (_LOOK_S if said_s is None else said_s + self.settings.say_each_s):
                said_s = waited_s
                self.record("waiting", held=[each.name for each in held], why=words)
                self.speech.say(words)
            self.hands.demand.wait_for(self.wanted.pod_type, least - len(held))
            self.pause(_LOOK_S)

    def room_to_grow(self, slices: Sequence[ClusterSlice]) -> bool:
        """Whether more slices could be had than there are."""
        held = [each.name for each in self.hands.held]
        trusted = _without(slices, self._suspects)
        found = pick(trusted, self.wanted, held, self.settings.least, self.settings.most)
        return len(found.names) > len(held)

    def lose(self, agents: Sequence[Agent]) -> list[str]:
        """Give back the slices of ``agents``, which are gone; the names of those hosts that were told to go."""
        for agent in agents:
            self._suspects.add(agent.host.node_id)
            for held in [each for each in self.hands.held if agent in each.agents]:
                self.give_back(held, f"host {agent.name} was lost")
        return [agent.name for agent in agents if self.hands.left_as_told(agent)]

    def quarantine(self, name: str, reason: str) -> None:
        """Set the slice ``name`` aside for every launcher."""
        self.record("quarantined", slice=name, why=reason)
        self.hands.quarantine(name, reason)
        for held in [each for each in self.hands.held if each.name == name]:
            self.give_back(held, reason)

    def give_back_all(self, why: str) -> None:
        """Keep nothing."""
        for held in list(self.hands.held):
            self.give_back(held, why)

    def give_back(self, held: Held, why: str) -> None:
        """Do without ``held``."""
        self.record("given_back", slice=held.name, why=why)
        self.hands.give_back(held)

    def _give_back_what_is_broken(self, slices: Sequence[ClusterSlice]) -> None:
        """A slice that lost a host, or is going to, is of no use; one that got a new host has to be reserved anew."""
        by_name = {each.name: each for each in slices}
        for held in list(self.hands.held):
            now, own = by_name.get(held.name), {agent.host.node_id for agent in held.agents}
            if now is None:
                self.give_back(held, "it is gone")
            elif now.state in ("broken", "draining", "quarantined"):
                self.give_back(held, now.why)
            elif {host.node_id for host in now.hosts} != own:
                self.give_back(held, "it got another host")


def _without(slices: Sequence[ClusterSlice], suspects: Set[str]) -> tuple[ClusterSlice, ...]:
    """``slices`` with the hosts that are not to be trusted taken for dead."""
    return tuple(
        replace(
            each,
            hosts=tuple(replace(host, alive=host.alive and host.node_id not in suspects) for host in each.hosts),
        )
        for each in slices
    )
