"""A run on a cluster from its first reservation to its end: the state machine of :mod:`launcher.cluster.states`.

One pass of the loop is an attempt: whole slices are reserved (those of the attempt before are kept, if they are
intact), every host is looked at, the ranks are started and watched. What an attempt ended with is classified, charged
to a budget and either tried again or not. Whatever is waited for, a request to stop ends it, and a minute without
anything new is explained.
"""

import secrets
import select
import signal
import time
import traceback
from dataclasses import dataclass, field

from launcher import failure
from launcher.cluster import preflight
from launcher.cluster.attempt import Attempt, last_saved_step
from launcher.cluster.goodput import Goodput
from launcher.cluster.hands import Hands, Held, HostLost
from launcher.cluster.holding import Holding, NoCapacity
from launcher.cluster.metrics import RunMetrics
from launcher.cluster.policy import Ending, FailureClass, Ledger, Verdict, classify
from launcher.cluster.settings import Settings
from launcher.cluster.speech import Speech
from launcher.cluster.states import Journey, State
from launcher.cluster.work import Work
from launcher.job import JobResult
from launcher.stop import StopRequests
from launcher.supervise import INTERRUPTED, Record
from torchtpu_dist.errors import LaunchError, StopRequested, TorchTpuError


class _Stopped(Exception):
    """A signal asked to stop while there were no ranks."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number


@dataclass
class Controller:
    """Runs ``work`` on the cluster that ``hands`` reach.

    Args:
        record: told of every event, for ``events.jsonl``.
        stop_requests: signals of this process.
    """

    work: Work
    hands: Hands
    settings: Settings
    speech: Speech
    record: Record
    stop_requests: StopRequests
    metrics: RunMetrics
    journey: Journey = field(init=False)
    goodput: Goodput = field(init=False)
    ledger: Ledger = field(init=False)
    holding: Holding = field(init=False)

    def __post_init__(self) -> None:
        self.journey = Journey(self.record)
        self.goodput = Goodput(time.time())
        self.ledger = Ledger(self.settings.budgets)
        self.holding = Holding(self.work.wanted, self.hands, self.settings, self.speech, self.record, self.pause)
        self._known: dict[str, preflight.HostFacts] = {}  # by id of node
        self._step = 0

    def run(self) -> int:
        """The exit code of the run."""
        try:
            while True:
                code = self._attempt()
                if code is not None:
                    return code
        except _Stopped as stop:
            self.journey.go(State.STOPPED, signal=stop.number.name)
            self.speech.stopped(stop.number, self.work.run_dir)
            return INTERRUPTED
        except TorchTpuError as error:
            return self._give_up(str(error), error.exit_code)
        except Exception as error:
            # A mistake of this program: no class of failure, no budget, and no traceback on the console.
            self.record("mistake", traceback=traceback.format_exc())
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            why = f"a mistake of the launcher ({what}); events.jsonl of {self.work.run_dir} has its traceback"
            return self._give_up(why, LaunchError.exit_code)
        finally:
            self.metrics.look(time.time(), self.goodput.report, at_once=True)
            report = self.goodput.report(time.time())
            self.record("goodput", total_s=report.total_s, productive_s=report.productive_s, startup_s=report.startup_s,
                        checkpoint_s=report.checkpoint_s, lost_s=dict(report.lost))  # fmt: skip
            if self.journey.attempt > 0:
                self.speech.say(report.line)

    def _give_up(self, why: str, exit_code: int) -> int:
        if not self.journey.over:
            self.journey.go(State.FAILED, exit_code=exit_code, why=why)
        self.speech.gave_up(why)
        return exit_code

    def _attempt(self) -> int | None:
        """One attempt; the exit code of the run if it was the last."""
        self.journey.go(State.RESERVING)
        self.goodput.attempt_started(time.time())
        attempt: Attempt | None = None
        try:
            held = self.holding.reserve()
            self.journey.go(State.PREFLIGHT, slices=[each.name for each in held])
            self._preflight(held)
            self.journey.go(State.STARTING)
            attempt = self._new_attempt(held)
            self.speech.attempt(self.journey.attempt, attempt.layout, held, self.work.run_dir, attempt.job.backend)
            result = attempt.run()
        except NoCapacity as error:
            return self._end(Verdict(FailureClass.NO_CAPACITY, str(error)), Ending(step=self._step))
        except TorchTpuError as error:
            if attempt is not None:
                self.holding.give_back_all("ranks may have been started on some of its hosts")
            return self._after_an_error(error)
        # Ranks tell of their steps once a second; a checkpoint is proof of those that it has.
        self._step = max(self._step, result.step, last_saved_step(self.work.run_dir) or 0)
        return self._after(attempt, result)

    def _new_attempt(self, held: tuple[Held, ...]) -> Attempt:
        return Attempt(
            shape=self.work.shapes[len(held)],
            held=held,
            hands=self.hands,
            settings=self.settings,
            journey=self.journey,
            goodput=self.goodput,
            speech=self.speech,
            record=self.record,
            stop_requests=self.stop_requests,
            one_machine=self._one_machine(held),
            known=self._known,
            metrics=self.metrics,
            room_to_grow=self.holding.room_to_grow,
            glance=self._glance,
        )

    # -- preflight

    def _preflight(self, held: tuple[Held, ...]) -> None:
        """Look at the hosts that are new."""
        fresh = [agent for each in held for agent in each.agents if agent.host.node_id not in self._known]
        if not fresh:
            return
        run_dir, asked_s = self.work.run_dir, time.time()
        # A name that no other folder has: one that is not shared must not look as if it were.
        token = run_dir / f".launcher-{secrets.token_hex(8)}"
        token.touch()
        try:
            asked = [(agent, agent.look_around(str(run_dir), token.name)) for agent in fresh]
            doing, limit_s = "agents come up and look at their hosts", self.settings.agent_timeout_s
            facts = self.hands.answers(asked, limit_s, doing, self._glance)
        finally:
            token.unlink(missing_ok=True)
        named = {agent.name: each for agent, each in zip(fresh, facts, strict=True)}
        preflight.check(named, run_dir, preflight.own_versions(), asked_s)
        self._known.update({agent.host.node_id: each for agent, each in zip(fresh, facts, strict=True)})

    def _one_machine(self, held: tuple[Held, ...]) -> bool:
        """Whether all hosts are one machine, whose processes can share memory."""
        return len({self._known[agent.host.node_id].machine for each in held for agent in each.agents}) == 1

    # -- after an attempt

    def _after(self, attempt: Attempt, result: JobResult) -> int | None:
        """What becomes of the run, given how its ranks ended."""
        now = time.time()
        lost = [attempt.agent(host) for host in result.lost_hosts]
        left = self.holding.lose(lost)
        if result.exit_code == 0:
            self.goodput.attempt_ended(now)
            if self.journey.state is State.STARTING:
                self.journey.go(State.RUNNING)  # they were through before all of them were seen to run
            self.journey.go(State.SUCCEEDED)
            return 0
        if result.stopped_by is not None:
            self.goodput.attempt_ended(now)
            self.journey.go(State.STOPPED, signal=result.stopped_by, exit_code=result.exit_code)
            self.speech.result(attempt.job, result)
            return result.exit_code
        saved = result.exit_code == StopRequested.exit_code
        if saved and result.asked_by == "resize":
            self.goodput.attempt_ended(now, "resize", self._step)
            return None
        drained = {*attempt.drained, *left}
        if saved and not drained and not result.lost_hosts:
            verdict = Verdict(
                FailureClass.PREEMPTION, "the ranks were told to stop by a signal from outside, and saved"
            )
        else:
            verdict = None
        first = next((each for each in result.failures if not each.secondary), None)
        ending = Ending(
            failure=first or (result.failures[0] if result.failures else None),
            lost_hosts=result.lost_hosts,
            drained_hosts=tuple(sorted(drained)),
            hung=result.hung is not None,
            first_step_done=attempt.first_step_done,
            step=self._step,
            failed_host=None if first is None else attempt.layout.host_of(first.rank).name,
        )
        return self._end(verdict or classify(ending), ending, attempt, result)

    def _after_an_error(self, error: TorchTpuError) -> int | None:
        """The attempt came to nothing before its ranks ran."""
        if isinstance(error, HostLost):
            left = self.holding.lose([error.agent])
            ending = Ending(lost_hosts=(error.agent.name,), drained_hosts=tuple(left), step=self._step)
        else:
            ending = Ending(failure=failure.from_exception(-1, error), step=self._step)
        return self._end(Verdict(classify(ending).failure_class, str(error)), ending)

    def _end(
        self, verdict: Verdict, ending: Ending, attempt: Attempt | None = None, result: JobResult | None = None
    ) -> int | None:
        """Charge the budget; the exit code of the run if it is spent."""
        now = time.time()
        self.ledger, decision = self.ledger.after(verdict, ending)
        job = None if attempt is None else attempt.job
        saved = last_saved_step(self.work.run_dir)
        self.goodput.attempt_ended(now, verdict.failure_class.value, saved)
        self.record("failure", **{"class": verdict.failure_class.value}, reason=verdict.reason, budget=decision.why,
                    restart=decision.restart, step=ending.step, lost_hosts=list(ending.lost_hosts))  # fmt: skip
        if not decision.restart:
            self.journey.go(State.FAILED, exit_code=decision.exit_code)
            self.speech.failed(verdict, decision, job, result)
            return decision.exit_code
        self.metrics.restarted(verdict.failure_class)
        self.journey.go(State.FAILING)
        self.speech.failing(self.journey.attempt, verdict, decision, ending, job, result, saved)
        if decision.quarantine is not None:
            self.holding.quarantine(decision.quarantine, verdict.reason)
        self.journey.go(State.BACKOFF, seconds=decision.backoff_s)
        self.pause(decision.backoff_s)
        return None

    def _glance(self) -> None:
        """Raises _Stopped if a signal asks to stop."""
        self.pause(0.0)

    def pause(self, seconds: float) -> None:
        """Wait, unless a signal asks to stop.

        Raises:
            _Stopped: one did.
        """
        ready, _, _ = select.select([self.stop_requests], [], [], seconds)
        if ready:
            raise _Stopped(self.stop_requests.take()[0])
