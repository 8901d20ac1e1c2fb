"""Stages: the loops of one compute, and the primitives that change their order, place and kind (te.schedule)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from renorm.core.absent_names import missing
from renorm.core.errors import InvalidSchedule
from renorm.expr.nodes import Expr, as_expr
from renorm.te import rewriting
from renorm.te.given_loops import ExternOp
from renorm.te.mirror import Mirror, primitive
from renorm.te.relations import Fuse, Relation, Singleton, Split
from renorm.te.tensor import ComputeOp, IterVar, Tensor
from renorm.te.window import Window
from renorm.tir.nodes import VIRTUAL

if TYPE_CHECKING:
    from renorm.te.schedule import Schedule


class Stage:
    """The loops of one compute, or the rounds of te.extern. Get it as `s[T]`; every primitive changes it in place.

    op: the compute as it is now (cache_read and the like replace bodies). leaf_iter_vars: the loops, outermost first.
    """

    def __init__(self, op: ComputeOp | ExternOp, schedule: Schedule):
        self.op: ComputeOp | ExternOp = op
        self.schedule = schedule
        self.relations: list[Relation] = []
        self.leaf_iter_vars: list[IterVar] = [*op.axis, *op.reduce_axis]
        self.kinds: dict[IterVar, str] = {}
        self.threads: dict[IterVar, IterVar] = {}
        self.scope = ""
        self.nontemporal = False
        self.is_double_buffered = False
        self.alignments: dict[IterVar, tuple[int, int]] = {}
        self.is_stored_at_root = False
        self.window: Window | None = None
        self.prefetches: list[tuple[Tensor, IterVar, int]] = []
        self.attach: tuple[Stage, IterVar] | None = None
        self.like: Tensor | None = None
        self.is_inline = False

    @property
    def tensor(self) -> Tensor:
        return self.op.tensor

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def mirror(self) -> Mirror | None:
        """As of the schedule."""
        return self.schedule.mirror

    @property
    def is_output(self) -> bool:
        return any(op is self.tensor.op for op in self.schedule.outputs)

    def __repr__(self) -> str:
        return f"<stage {self.name}: {', '.join(a.name for a in self.leaf_iter_vars) or 'no loops'}>"

    def __getattr__(self, name: str) -> Any:
        raise missing("s[T]", name)

    def computed(self, primitive: str) -> ComputeOp:
        """Return what a stage computes by a formula; raise InvalidSchedule for one whose loops are given."""
        if isinstance(self.op, ExternOp):
            do = "split, fuse, unroll, bind or run its rounds in parallel, at root"
            raise InvalidSchedule(f"{self.name}: {primitive} of te.extern, whose loops are given", do=do)
        return self.op

    # -- loops

    @primitive("s[T].")
    def split(self, parent: IterVar, factor: int | None = None, nparts: int | None = None) -> tuple[IterVar, IterVar]:
        """Makes two nested loops of one: the inner one has `factor` rounds, or the outer one `nparts`.

            for (i, 0, 10)            s[T].split(i, factor=4)        for (i.outer, 0, 3)
              T[i] = ...                                               for (i.inner, 0, 4)
                                                                         if (i.outer*4 + i.inner < 10)
                                                                           T[i.outer*4 + i.inner] = ...

        Gives (outer, inner). The condition is there only where the factor leaves a tail. An extent below the factor
        gives an inner loop of that extent. Raises InvalidSchedule where `parent` is no loop of this stage.
        """
        given = [x for x in (factor, nparts) if x is not None]
        if len(given) != 1:
            raise InvalidSchedule(f"{self.name}: split of {parent.name} takes factor= or nparts=, one of the two")
        position = self._place_of_split(parent, given[0])
        outer = IterVar(f"{parent.name}.outer", 0, parent.kind)
        inner = IterVar(f"{parent.name}.inner", 0, parent.kind)
        relation = Split(parent, outer, inner, factor, nparts)
        outer.extent, inner.extent = relation.extents(parent.extent)
        self.relations.append(relation)
        self.leaf_iter_vars[position : position + 1] = [outer, inner]
        return outer, inner

    def _place_of_split(self, parent: IterVar, by: int) -> int:
        position = self._loop(parent, "split")
        if by < 1:
            raise InvalidSchedule(f"{self.name}: split of {parent.name} by {by!r}", ["expected an int from 1 up"])
        return position

    @primitive("s[T].")
    def fuse(self, *args: IterVar) -> IterVar:
        """Makes one loop of adjacent nested loops, given outermost first.

            for (i, 0, 4)             s[T].fuse(i, j)                for (i.j.fused, 0, 24)
              for (j, 0, 6)                                            T[i.j.fused // 6, i.j.fused % 6] = ...
                T[i, j] = ...

        Without axes it gives a new outermost loop of one round, for stages that have no axes. Raises InvalidSchedule
        where the loops are not adjacent in this order, or mix data axes with reduce axes.
        """
        if not args:
            axis = IterVar("singleton", 1, "data")
            self.relations.append(Singleton(axis))
            self.leaf_iter_vars.insert(0, axis)
            return axis
        position = self._loop(args[0], "fuse")
        for outer, inner in pairwise(args):
            if self._loop(inner, "fuse") != self._loop(outer, "fuse") + 1:
                raise InvalidSchedule(
                    f"{self.name}: {outer.name} and {inner.name} cannot fuse, {inner.name} is not the next loop inside",
                    [f"loops: {_names(self.leaf_iter_vars)}"],
                    do="reorder them first",
                )
            if outer.kind != inner.kind:
                raise InvalidSchedule(
                    f"{self.name}: {outer.name} and {inner.name} cannot fuse",
                    [f"{outer.name} is a {outer.kind} axis", f"{inner.name} is a {inner.kind} axis"],
                )
        fused = args[0]
        for axis in args[1:]:
            outer, fused = fused, IterVar(f"{fused.name}.{axis.name}.fused", fused.extent * axis.extent, axis.kind)
            self.relations.append(Fuse(outer, axis, fused))
        self.leaf_iter_vars[position : position + len(args)] = [fused]
        return fused

    @primitive("s[T].")
    def tile(
        self, x_parent: IterVar, y_parent: IterVar, x_factor: int, y_factor: int
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Cuts two loops into tiles: both split, tiles outside, elements of a tile inside.

            for (x, 0, 64)            s[T].tile(x, y, 8, 16)         for (x.outer, 0, 8)
              for (y, 0, 64)                                           for (y.outer, 0, 4)
                T[x, y] = ...                                            for (x.inner, 0, 8)
                                                                           for (y.inner, 0, 16)
                                                                             T[x.outer*8 + x.inner, ...] = ...

        Gives (x outer, y outer, x inner, y inner).
        """
        if x_parent is y_parent:
            raise InvalidSchedule(f"{self.name}: tile names the axis {x_parent.name} twice")
        self._place_of_split(y_parent, y_factor)  # before anything is changed
        x_outer, x_inner = self.split(x_parent, factor=x_factor)
        y_outer, y_inner = self.split(y_parent, factor=y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    @primitive("s[T].")
    def reorder(self, *args: IterVar) -> None:
        """Puts the given loops into the given order, in the places that they take now; other loops stay.

            for (i, 0, 8)             s[T].reorder(k, i)             for (i.init, 0, 8)
              T[i] = 0                                                 T[i] = 0
              for (k, 0, 9)                                          for (k, 0, 9)
                T[i] += A[i, k]                                        for (i, 0, 8)
                                                                         T[i] += A[i, k]

        Reduce axes may go around data axes: start values then get a nest of their own before the outermost reduce loop.
        """
        if len(set(args)) != len(args):
            raise InvalidSchedule(f"{self.name}: reorder names an axis twice", [_names(args)])
        positions = sorted(self._loop(axis, "reorder") for axis in args)
        for position, axis in zip(positions, args, strict=True):
            self.leaf_iter_vars[position] = axis

    @primitive("s[T].")
    def vectorize(self, var: IterVar) -> None:
        """Runs all rounds of a loop as one vector operation.

            for (i.inner, 0, 8)       s[T].vectorize(i.inner)        T[ramp(i.outer*8, 1, 8)] = A[ramp(i.outer*8, 1, 8)]
              T[i.outer*8 + i.inner] = A[i.outer*8 + i.inner]

        Reduce axes have dependent rounds: use rfactor first.
        """
        self.computed("vectorize")
        self._annotate([var], "vectorized", "vectorize")

    @primitive("s[T].")
    def unroll(self, var: IterVar) -> None:
        """Writes out all rounds of a loop.

            for (i, 0, 2)             s[T].unroll(i)                 T[0] = A[0]
              T[i] = A[i]                                            T[1] = A[1]

        For short loops: the code grows with the extent.
        """
        self._annotate([var], "unrolled", "unroll")

    @primitive("s[T].")
    def tensorize(self, var: IterVar) -> None:
        """Runs a loop and all loops inside it as one instruction on matrices, where the target has one.

            for (i, 0, 32)            s[T].tensorize(i)              tensorized (i, 0, 32)
              for (j, 0, 32)                                           tensorized (j, 0, 32)
                for (k, 0, 16)                                           tensorized (k, 0, 16)
                  for (p, 0, 2)                                            tensorized (p, 0, 2)
                    T[i, j] += A[i*32 + k*2 + p]*B[k*64 + j*2 + p]           T[i, j] += ...

        They mean what serial loops do. What touches a stage of scope "tile", which such registers hold, is tensorized.
        AMX takes widened bfloat16, or bytes, p of 4, j of 16 or 32, i of up to 32; of scope "register" AVX512_BF16
        takes j of 4, 8 or 16 and p alone, VNNI bytes, AVX2 int16, A[p*16 + j] too; tensor cores: see docs/gpu.md.
        """
        self._annotate(self.leaf_iter_vars[self._loop(var, "tensorize") :], "tensorized", "tensorize")

    @primitive("s[T].")
    def parallel(self, var: IterVar) -> None:
        """Hands the rounds of a loop out to threads.

            for (i, 0, 8)             s[T].parallel(i)               parallel (i, 0, 8)
              T[i] = ...                                               T[i] = ...

        A parallel loop inside another loop runs serially: what is to be shared out is made the outermost loop.
        """
        self._annotate([var], "parallel", "parallel")

    @primitive("s[T].")
    def bind(self, ivar: IterVar, thread_ivar: IterVar) -> None:
        """Lets the blocks or threads of a GPU run the rounds of a loop, one each.

            for (i.outer, 0, 4)       s[T].bind(i.outer, te.thread_axis("blockIdx.x"))
              for (i.inner, 0, 64)    s[T].bind(i.inner, te.thread_axis("threadIdx.x"))
                T[i.outer*64 + i.inner] = ...

            blockIdx.x = 0..3, threadIdx.x = 0..63:  T[blockIdx.x*64 + threadIdx.x] = ...

        Of te.thread_axis("vthread") one thread does the work of all, side by side: barriers and what threads share are
        there once, what each has for itself as often as there are virtual threads.

        A thread axis with an extent of its own may be longer than the loop: the threads beyond it do nothing. Stages
        at root are kernel launches of their own; a stage under compute_at shares blocks and threads of the stage it
        is in.
        """
        self._loop(ivar, "bind")
        if thread_ivar.kind != "thread":
            raise InvalidSchedule(
                f"{self.name}: {ivar.name} is bound to {thread_ivar.name}, which is not a thread axis",
                do='make one with te.thread_axis("threadIdx.x")',
            )
        if ivar.kind == "reduce":
            raise InvalidSchedule(
                f"{self.name}: the reduce axis {ivar.name} cannot be bound to {thread_ivar.name}",
                ["all of its rounds write one element"],
                do="s.rfactor(T, axis) makes it a data axis of a stage of its own, which can be bound",
            )
        for other, bound in self.threads.items():
            is_one = bound.thread == thread_ivar.thread != VIRTUAL
            if is_one and other is not ivar and other in self.leaf_iter_vars:
                raise InvalidSchedule(
                    f"{self.name}: {ivar.name} and {other.name} are both bound to {thread_ivar.thread}",
                    do="fuse them first",
                )
        if self.attach is None and not isinstance(ivar.extent, Expr):
            self._check_thread(ivar, thread_ivar)
        self.kinds[ivar] = thread_ivar.thread
        self.threads[ivar] = thread_ivar

    def _check_thread(self, axis: IterVar, thread: IterVar) -> None:
        """Raise InvalidSchedule where a loop has more rounds than the thread axis that it is bound to."""
        if thread.extent and axis.extent > thread.extent:
            raise InvalidSchedule(
                f"{self.name}: {axis.name} does not fit {thread.thread}",
                [f"{axis.name} has {axis.extent} rounds, {thread.thread} has extent {thread.extent}"],
                do=f"split {axis.name} by {thread.extent} first",
            )

    # -- place

    @primitive("s[T].")
    def compute_at(self, parent: Stage, scope: IterVar) -> None:
        """Computes this stage inside a loop of a stage that needs it, just the region needed there.

            for (i, 0, 8)             s[P].compute_at(s[C], i)       for (i, 0, 8)
              for (j, 0, 9)                                            allocate P[9]
                P[i, j] = ...                                          for (j, 0, 9)
            for (i, 0, 8)                                                P[j] = ...
              for (j, 0, 9)                                            for (j, 0, 9)
                C[i, j] = P[i, j] + 1                                    C[i, j] = P[j] + 1

        Everything that reads this stage must be inside that loop. Overlapping regions are computed again.
        """
        self.computed("compute_at")
        parent.computed("compute_at")
        if parent.schedule is not self.schedule:
            raise InvalidSchedule(f"{self.name} is computed at {parent.name}, a stage of another schedule")
        around: Stage | None = parent
        while around is not None and around is not self:
            around = around.attach[0] if around.attach else None
        if around is self:
            inside = "itself" if parent is self else f"{parent.name}, which is computed inside it"
            raise InvalidSchedule(f"{self.name} cannot be computed inside {inside}")
        parent._loop(scope, "compute_at")
        self.is_inline, self.attach, self.like = False, (parent, scope), None

    @primitive("s[T].")
    def compute_with(self, parent: Stage, axis: IterVar, like: Tensor) -> None:
        """Computes a result inside a loop of a stage that does not need it: those elements that are read there of
        `like`, a tensor of its shape.

            for (i, 0, 8)             s[D].compute_with(s[S], i, A)  for (i, 0, 8)
              S[0] += A[i]                                             D[i] = A[i] * 2
            for (i, 0, 8)                                              S[0] += A[i]
              D[i] = A[i] * 2

        What both read is then read from memory once. The result is stored whole, and may be read after the loops of
        `parent`; what rounds of a parallel loop compute of it must be disjoint.
        """
        if like.shape != self.tensor.shape:
            raise InvalidSchedule(
                f"{self.name} {self.tensor.shape} cannot be computed with what is read of {like.name} {like.shape}",
                [f"expected a tensor of the shape of {self.name}"],
            )
        self.compute_at(parent, axis)
        self.like, self.is_stored_at_root = like, True

    @primitive("s[T].")
    def compute_inline(self) -> None:
        """Computes each element where it is read, and keeps no array.

            for (i, 0, 8)             s[P].compute_inline()          for (i, 0, 8)
              P[i] = A[i] * 2                                          C[i] = A[i]*2 + 1
            for (i, 0, 8)
              C[i] = P[i] + 1

        Reductions and outputs of the schedule cannot be inlined.
        """
        self.computed("compute_inline")
        if self.op.reduce_axis:
            raise InvalidSchedule(f"{self.name} is a reduction and cannot be inlined", do="use compute_at")
        if self.is_output:
            raise InvalidSchedule(f"{self.name} is an output of the schedule and cannot be inlined")
        self.is_inline, self.attach, self.like = True, None, None

    @primitive("s[T].")
    def compute_root(self) -> None:
        """Computes this stage as loops of its own, before all that read it: how every stage starts.

            for (i, 0, 8)             s[P].compute_root()            for (i, 0, 8)
              P[0] = A[i] * 2                                          P[i] = A[i] * 2
              C[i] = P[0] + 1                                        for (i, 0, 8)
                                                                       C[i] = P[i] + 1

        It takes compute_at and compute_inline back.
        """
        self.is_inline, self.attach, self.like = False, None, None

    @primitive("s[T].")
    def set_scope(self, scope: str) -> None:
        """Keeps the region of a stage under compute_at in a memory: "global", "shared", "local", "register", "tile".

            allocate P[float32 * 9]   s[P].set_scope("register")     // attr [P] storage_scope = "register"
                                                                     allocate P[float32 * 9]

        Without it: "local" inside threads, "shared" inside blocks or where threads share its loops, else "global". A
        stage at root is passed between loops that share nothing else, hence always global.
        """
        self.computed("set_scope")
        rewriting.check_scope(self.name, scope)
        self.scope = scope

    @primitive("s[T].")
    def double_buffer(self) -> None:
        """Computes a stage one round ahead: what round k + 1 needs of it while round k uses what is there.

            for (k, 0, 8)             s[P].double_buffer()           allocate P[2*9]
              allocate P[9]                                          P[0..9] = f(0)
              P[0..9] = f(k)                                         for (k, 0, 8)
              T += P[0..9]                                             if (k + 1 < 8)
                                                                         P[(k+1)%2*9 ..] = f(k + 1)
                                                                       T += P[k%2*9 ..]

        For a stage in a serial loop, which reads nothing that the rounds before store. Where threads share it, one
        barrier a round is left of two; and on GPUs from sm_80 on whole vectors that are copied from global memory
        come while the threads compute (cp.async). Twice the memory.
        """
        self.computed("double_buffer")
        self.is_double_buffered = True

    @primitive("s[T].")
    def storage_align(self, axis: IterVar, factor: int, offset: int) -> None:
        """Keeps neighbours along an axis of a stage under compute_at a distance apart that is offset modulo factor.

            for (i, 0, 4)             s[T].storage_align(i, 32, 1)   allocate T[4*33]
              for (j, 0, 32)                                         for (i, 0, 4)
                T[i*32 + j] = ...                                      for (j, 0, 32)
                                                                         T[i*33 + j] = ...

        Threads that read a column of shared memory then meet in no bank. The least distance that holds what is inside.
        axis: a data axis of the compute itself. Of no meaning for arrays that a caller gives or that are kept whole
        (store_root), or where the region is open.
        """
        op = self.computed("storage_align")
        if axis not in op.axis:
            facts = [f"data axes: {_names(op.axis)}"]
            raise InvalidSchedule(f"{self.name}: storage_align of {axis.name}, which is no axis of its compute", facts)
        if factor < 1:
            raise InvalidSchedule(f"{self.name}: storage_align by {factor!r}", ["expected a factor from 1 up"])
        self.alignments[axis] = factor, offset % factor

    @primitive("s[T].")
    def store_root(self) -> None:
        """Keeps the whole array of a stage under compute_at, so that loops after those it is computed in read it too.

            for (i, 0, 8)             s[M].compute_at(s[C], i)       allocate M[8]
              M[i] = ...              s[M].store_root()              for (i, 0, 8)
            for (i, 0, 8)                                              M[i] = ...
              for (j, 0, 9)                                            for (j, 0, 9)
                C[i, j] = A[i, j] - M[i]                                 C[i, j] = A[i, j] - M[i]
            for (i, 0, 8)                                            for (i, 0, 8)
              D[i] = M[i] * 2                                          D[i] = M[i] * 2

        What the rounds of a parallel loop compute of it must be disjoint. Results of the schedule are always kept so.
        """
        self.computed("store_root")
        self.is_stored_at_root = True

    @primitive("s[T].")
    def store_past_caches(self) -> None:
        """Stores the elements of an output with a hint that nobody reads them soon.

            for (i, 0, 8)             s[T].store_past_caches()       for (i, 0, 8)
              T[i] = A[i]                                              nontemporal T[i] = A[i]

        For results that no cache could hold until they are read. On a CPU memory is then not read before it is
        written, which saves a third of the traffic of a copy; only whole vectors at aligned addresses profit.
        """
        self.computed("store_past_caches")
        if not self.is_output or self.op.reduce_axis:
            why = "is a reduction, which reads what it has stored" if self.op.reduce_axis else "is no output"
            raise InvalidSchedule(f"{self.name} cannot be stored past the caches: it {why}")
        self.nontemporal = True

    @primitive("s[T].")
    def store_within(self, strides: Sequence[int]) -> None:
        """Stores an output in a part of a larger array: neighbours along each axis are `strides` elements apart.

            for (i, 0, 4)             s[T].store_within((10, 1))     for (i, 0, 4)
              for (j, 0, 8)                                            for (j, 0, 8)
                T[i*8 + j] = A[i*8 + j]                                  T[i*10 + j] = A[i*8 + j]

        What lies between is left as it is. The caller gives the address of the first element. Where strides are equal
        to those of a row-major array up to some axis, axes after it still run over memory as one (`joint_axes`).
        """
        if not self.is_output:
            raise InvalidSchedule(f"{self.name} cannot be stored within a larger array: it is no output")
        self.window = Window.of(self.name, self.tensor.shape, strides)

    def joint_axes(self) -> int:
        """Return how many of the last axes lie in memory as those of a row-major array do."""
        shape = self.tensor.shape
        return len(shape) if self.window is None else self.window.joint_axes(shape)

    @primitive("s[T].")
    def redefine(self, formula: Callable[..., Expr], *tensors: Tensor) -> None:
        """Gives the compute another body, formula(its op, *tensors), of the same axes and with the same values.

            for (i, 0, 8)             s[T].redefine(lambda op: ...)  for (i, 0, 8)
              T[i] = A[i]*2 + A[i]                                     T[i] = A[i]*3

        Of what it says, only the reduce axes and the dtype are held against what it was.
        """
        op = self.computed("redefine")
        made = op.with_body(as_expr(formula(op, *tensors)))
        kinds = [f"{x.body.dtype}, over the reduce axes {_names(x.reduce_axis)}" for x in (op, made)]
        if set(made.reduce_axis) != set(op.reduce_axis) or made.body.dtype != op.body.dtype:
            raise InvalidSchedule(f"{self.name}: redefine gives {kinds[1]}", [f"expected {kinds[0]}"])
        self.op = made

    @primitive("s[T].")
    def prefetch(self, tensor: Tensor, axis: IterVar, offset: int) -> None:
        """Asks memory for what is read of a tensor `offset` rounds of a loop later, evenly over the loops within.

            for (i, 0, 8)             s[T].prefetch(A, i, 1)         for (i, 0, 8)
              for (k, 0, 64)                                           for (k, 0, 64)
                T[i] += A[i*64 + k]                                      prefetch A[i*64 + k + 64]
                                                                         T[i] += A[i*64 + k]

        axis: a loop of this stage or of one that it is computed in; it may be fused with others, also later, and the
        round that is meant is then the same, whichever thread computes it. The tensor may be read by another stage in
        that loop. It is a hint: left out where what a round reads is no run of memory, or several of equal length,
        where sizes are open, on a GPU, and for a tensor that is computed in a loop.
        """
        self.computed("prefetch")
        rewriting.check_prefetch(self, axis, offset)
        self.prefetches.append((tensor, axis, offset))

    # -- what primitives have in common

    def _loop(self, axis: IterVar, primitive: str) -> int:
        """The position of a loop; raises InvalidSchedule with what became of the axis."""
        for position, leaf in enumerate(self.leaf_iter_vars):
            if leaf is axis:
                return position
        facts = [f"loops: {_names(self.leaf_iter_vars)}"]
        for relation in self.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                facts.insert(0, f"{axis.name} was split into {relation.outer.name} and {relation.inner.name}")
            elif isinstance(relation, Fuse) and axis in (relation.outer, relation.inner):
                facts.insert(0, f"{axis.name} was fused into {relation.fused.name}")
        raise InvalidSchedule(f"{self.name}: {primitive} of {axis.name}, which is not a loop of this stage", facts)

    def _annotate(self, axes: Sequence[IterVar], kind: str, primitive: str) -> None:
        for axis in axes:
            self._loop(axis, primitive)
            if axis.kind == "reduce" and kind not in ("unrolled", "tensorized"):
                raise InvalidSchedule(
                    f"{self.name}: {primitive} of the reduce axis {axis.name}, whose rounds depend on each other",
                    do="s.rfactor(T, axis) makes it a data axis of a stage of its own",
                )
            if axis in self.threads:
                raise InvalidSchedule(f"{self.name}: {axis.name} is bound to {self.threads[axis].thread} already")
        self.kinds.update(dict.fromkeys(axes, kind))


def _names(axes: Iterable[IterVar]) -> str:
    return ", ".join(f"{a.name} (reduce)" if a.kind == "reduce" else a.name for a in axes) or "none"
