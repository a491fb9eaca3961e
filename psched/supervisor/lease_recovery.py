"""Lease recovery: releases the leases of dead children. Used in the master and in its recovery child.

Normally the next worker that is forked releases these leases before it polls. If no worker is forked, the master forks
a recovery child. This child releases the leases and exits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from psched.config import Settings
from psched.error_messages import one_line
from psched.execution.opened_stores import open_sections
from psched.model import worker_died
from psched.process.child_base import ChildBase
from psched.process.child_protocol import RECOVERED, ChildPipe
from psched.process.child_spec import FETCHER_SLOT, ChildSpec
from psched.process.dead_child import DeadChild
from psched.store import holder_name
from psched.supervisor.child import ChildProcess
from psched.supervisor.fork_and_reap import ProcessTable

log = logging.getLogger(__name__)

_TIMEOUT = 3.0
"""Seconds for one attempt to release leases. A stop does not wait longer for the database."""
_RETRY_PAUSE = 5.0


class LeaseRecovery:
    """The dead children whose leases are not released yet.

    At most one recovery child at a time releases these leases.
    """

    def __init__(self, process_table: ProcessTable) -> None:
        self._process_table = process_table
        self._unclaimed: list[DeadChild] = []
        self._claimed: tuple[DeadChild, ...] = ()
        self._in_part: list[DeadChild] = []
        """Dead children of which a recovery child releases only the runs. The next worker reports these children to the
        fetching child, because only the fetching child knows their other leases."""
        self._empty: list[DeadChild] = []
        """Children that released all their leases at their forced exit. The next worker tells the fetching child, so
        that the fetching child forgets them."""
        self._shared: set[str] = set()
        """The holders that dead children shared with other children."""
        self._child: ChildProcess | None = None
        self._fork_at = -math.inf

    def child_ended(self, child: ChildProcess, spec: ChildSpec) -> None:
        """Add the child if it may have left leases, and its dead predecessors if it has not released their leases."""
        if not child.recovered:
            self.add(spec.dead)
        name = "" if spec.dispatch is None else spec.name
        if child.empty and name:
            self._empty.append(DeadChild(spec.holder, child=name))
        elif child.ready and not (child.orderly or child.empty):
            runs = child.runs
            names, claims = tuple([run.name for run in runs]), tuple([run.claim for run in runs])
            is_fetcher = spec.slot == FETCHER_SLOT
            if name:
                self._shared.add(spec.holder)
            self.add([DeadChild(spec.holder, names, worker_died(child.end), name, claims, is_fetcher)])

    def add(self, dead: Iterable[DeadChild]) -> None:
        self._unclaimed.extend(dead)

    def claim(self) -> tuple[DeadChild, ...]:
        """Return the dead children, and forget them. The next worker releases their leases."""
        claimed = (*self._in_part, *self._unclaimed, *self._empty)
        self._empty.clear()
        self._in_part.clear()
        self._unclaimed.clear()
        return claimed

    @property
    def done(self) -> bool:
        """Whether all leases are released, or no further attempt will be made."""
        return self._child is None and not self._unclaimed

    def _claim_without_fetchers(self) -> tuple[DeadChild, ...]:
        claimed = tuple([dead for dead in self._unclaimed if not dead.is_fetcher])
        self._unclaimed = [dead for dead in self._unclaimed if dead.is_fetcher]
        return claimed

    @property
    def deadline(self) -> float:
        is_needed = self._child is None and not all(dead.is_fetcher for dead in self._unclaimed)
        return self._fork_at if is_needed else math.inf

    def tick(self, now: float, settings: Settings, last: bool, holders: Collection[str] = ()) -> None:
        """Fork a recovery child if necessary.

        Call this after the ticks of the slots: if a slot forks a worker, that worker releases the leases instead. The
        leases of a dead fetching child wait for the next fetching child.

        `holders`: the holders of the living children, and of the next children. Any other holder belongs to an earlier
        configuration, and its last child has ended. All leases that such a holder still has are released.

        `last`: whether no more workers will be forked. If so, there is only one attempt. If this attempt fails, the
        remaining leases end after `alive_time`.
        """
        child = self._child
        if child is not None and child.gone:
            self._child = None
            if not child.recovered:
                self._failed(child.start_error or f"the recovery process {child.end}", now, last)
        unused = self._shared.difference(holders)
        self._shared -= unused
        self.add(DeadChild(holder) for holder in sorted(unused))
        if last:
            self._empty.clear()
        if self._child is not None or (now < self._fork_at and not last):
            return
        self._claimed = self.claim() if last else self._claim_without_fetchers()
        if not self._claimed:
            return
        self._in_part += [dead for dead in self._claimed if dead.child and not last]
        try:
            make = partial(RecoveryChild, settings, self._claimed, last)
            self._child = self._process_table.fork("lease recovery", settings, make, lifetime=_TIMEOUT)
        except OSError as error:
            self._failed(f"cannot fork: {error.strerror}", now, last)
        else:
            log.info("%s releases the leases of %s", self._child, _number_of(self._claimed))

    def _failed(self, reason: str, now: float, last: bool) -> None:
        if last:
            self._claimed += self.claim()
        outlook = "the leases end after alive_time" if last else "retrying"
        log.warning("cannot release the leases of %s: %s; %s", _number_of(self._claimed), reason, outlook)
        self._in_part = [dead for dead in self._in_part if dead not in self._claimed]
        if not last:
            self.add(self._claimed)
            self._fork_at = now + _RETRY_PAUSE


def _number_of(dead: Sequence[DeadChild]) -> str:
    return "1 dead child" if len(dead) == 1 else f"{len(dead)} dead children"


class RecoveryChild(ChildBase):
    def __init__(self, settings: Settings, dead: Sequence[DeadChild], is_last: bool, pipe: ChildPipe) -> None:
        """`is_last`: whether no child is left. If so, all leases of a holder that children shared can be released."""
        self._dead = dead
        self._is_last = is_last
        self._pipe = pipe
        self._sections = open_sections(settings, holder_name("lease-recovery"))

    def run(self) -> None:
        """Release the leases. Stop at the first failure, because the other releases would fail, too."""
        try:
            for dead in self._dead:
                for section in self._sections:
                    section.give_back(dead, None if self._is_last else dead.own_claims(section.name))
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the master learns that it failed
            log.warning("cannot release the leases of %s: %s", dead.holder, one_line(error))
        else:
            self._pipe.send(RECOVERED)
        finally:
            for section in self._sections:
                section.source.store.close()
