"""The training loop, shared by trials of sweeps and ranks of distributed trainings."""

import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR

from trainyard.cluster.stop_request import StopRequest
from trainyard.config.config import Data
from trainyard.config.train import Train, Training
from trainyard.training import models, numerics, optimizers
from trainyard.training.activation_checkpointing import checkpoint_blocks
from trainyard.training.augmentation import Augmenter, Mixer
from trainyard.training.checkpoints import Checkpointer, CheckpointStore
from trainyard.training.epoch_metrics import EpochMetrics, is_out_of_patience
from trainyard.training.fine_tuning import freeze, load_pretrained, set_training_mode
from trainyard.training.forward_pass import ForwardPass, compile_blocks
from trainyard.training.loaders import ImageBatch, InputData, Split
from trainyard.training.loss_and_metrics import Means, Objective
from trainyard.training.optimizers import WeightAverage
from trainyard.training.out_of_memory import OutOfMemory, is_out_of_memory
from trainyard.training.process_group import Group
from trainyard.training.running_statistics import reduce_buffers, unchanged_buffers
from trainyard.training.sampler import BatchSizes, derived_seed, steps_per_epoch, training_batches, validation_batches
from trainyard.training.step_profile import StepProfiler
from trainyard.training.step_sync import StepFlags, StepStatus
from trainyard.training.step_timing import (
    Moment,
    StepRate,
    StepTimer,
    StepTimes,
    moment,
    synchronize,
    wait_until_reached,
)
from trainyard.training.training_state import EpochProgress, TrainingState, seed_generators, set_random_state
from trainyard.utils.errors import Diverged, UserError

# Images of a validation batch per image of a micro-batch, on a GPU: small kernels are launched less often, and no
# activations are kept for a backward pass. On a CPU, it would only change the last digits of the loss.
ENLARGED_ON_GPU: Final = 4
COLLECTED_STEPS: Final = 10  # from one garbage collection to the next
log = logging.getLogger(__name__)


class TrainingInterrupted(UserError):
    """The deadline was reached, or a signal told a rank to stop: the same on all ranks.

    A checkpoint of this step is in the store, if any.
    """

    def __init__(self, where: str, *, signalled_rank: int | None, world_size: int) -> None:
        """`signalled_rank`: the one that a signal has told to stop; None at the deadline."""
        self.is_by_signal = signalled_rank is not None
        rank = f" to rank {signalled_rank}" if world_size > 1 else ""
        reason = f"by a signal{rank}" if self.is_by_signal else "before the end of the walltime"
        super().__init__(f"stopped {reason}, in {where}")


class Trainer:
    """A training in progress: iterating over `epochs()` runs it.

    With a `store`, rank 0 saves a checkpoint after each epoch (at most every `save_every_seconds`), after the last one
    if `save_last`, and within a step when the `deadline` (Unix seconds) comes or a rank has a `stop_request`. A new
    `Trainer` continues from the last checkpoint, on any number of ranks if the global batch is the same. When a step
    does not fit the memory of a single rank, its micro-batches are halved; `on_halved` is called with the new sizes.

    Raises:
        models.ModelError, staged.DataError: the model or the data do not fit the spec.
        WeightsError: the pretrained weights cannot be used.
        UserError: the checkpoint belongs to a training with another spec or global batch.
    """

    first_step_time: float | None = None  # Unix seconds at the end of the first step of this run

    def __init__(
        self,
        spec: Training,
        data: InputData,
        group: Group,
        *,
        batch: BatchSizes,
        store: CheckpointStore | None = None,
        save_every_seconds: float = 0.0,
        save_last: bool = True,
        deadline: float = math.inf,
        stop_request: StopRequest | None = None,
        downloads: str = Data().downloads,
        on_halved: Callable[[BatchSizes], object] = lambda batch: None,
        ddp: Mapping[str, Any] = {},
        profiler: StepProfiler | None = None,
    ) -> None:
        numerics.choose_kernels(spec, group.device)  # before own code is tried
        self.objective = Objective(spec, group.device, classes=data.classes, numeric=data.numeric)
        self.objective.check_shares(len(data.val), ranks=group.world_size)
        seed_generators(spec.seed)  # after own code, which may draw random numbers
        self.spec = spec
        self.data = data
        self.group = group
        self.batch = batch
        self.steps = steps_per_epoch(len(data.train), batch)
        self.precision = numerics.resolve_precision(spec.precision, group.device)
        numerics.set_float32(self.precision)
        channels_last = group.device.type == "cuda" and self.precision in numerics.CHANNELS_LAST
        self._save_last = save_last
        self._profiler = profiler if group.is_main else None
        self._end_step: Callable[[], None] = lambda: None
        self.deadline = deadline
        self.stop_request = stop_request or StopRequest()
        self._on_halved = on_halved
        self._validation = Validation(data.val, self.objective, group)
        self.flags = StepFlags(group)
        self.mix = Mixer(spec.augment, data, seed=spec.seed, channels_last=channels_last)
        self.module = _build_module(spec, data, group, channels_last=channels_last, downloads=downloads)
        parts = (self.module, spec, data, group, self.objective)
        self.forward = ForwardPass(*parts, channels_last=channels_last, ddp=ddp)
        optimizer = optimizers.build_optimizer(spec, self.module)
        schedule = optimizers.build_schedule(spec, optimizer, self.steps)
        # In fp16, small gradients underflow (Micikevicius et al. 2017).
        scaler = torch.amp.GradScaler(group.device.type, enabled=self.precision == "fp16")
        loss = self.objective.loss_module
        self.state = TrainingState(self.module, optimizer, schedule, scaler, group, spec, loss)
        self.history = self.state.history  # the complete epochs, including previous runs
        if spec.activation_checkpointing:
            checkpoint_blocks(self.module)  # after the optimizer has seen the names of the parameters
        if spec.compile == "blocks":
            compile_blocks(self.module)
        self.wrap()  # before a checkpoint is loaded, within an epoch: DDP broadcasts the buffers of rank 0
        if spec.ema_decay is not None:
            self.state.average = WeightAverage(self.module)
            if spec.compile == "blocks":
                compile_blocks(self.state.average.module)  # a copy is not compiled
        self.checkpoints = Checkpointer(
            store,
            self.state,
            global_batch=batch.images,
            seed=spec.seed,
            precision=self.precision,
            every_seconds=save_every_seconds,
        )

    @property
    def model(self) -> nn.Module:
        """The model as the steps call it."""
        return self.forward.model

    def wrap(self, *, for_warm_up: bool = False) -> None:
        """Set `model`, for the present micro-batches."""
        self.forward.wrap(accumulation=self.batch.accumulation, for_warm_up=for_warm_up)

    @property
    def seconds(self) -> float:
        """Of training and checkpoints, also of previous runs."""
        return sum(row.seconds for row in self.history) + self.state.progress.seconds + self.checkpoints.total_seconds

    @property
    def trial_metrics(self) -> dict[str, Any]:
        """What a trial reports at its end: the metrics of the last epoch, the best ones, and the batch; {} at first."""
        if not self.history:
            return {}
        metrics = self.history[-1].as_row()
        best = self.history[(self.state.best_epoch or 1) - 1]
        accuracies = [row.val_accuracy for row in self.history if row.val_accuracy is not None]
        metrics["best_val_accuracy"] = max(accuracies, default=None)
        metrics[f"best_{self.spec.metric}"] = best.value(self.spec.metric)
        return metrics | {"micro_batch": self.batch.micro, "accumulation": self.batch.accumulation}

    @property
    def is_complete(self) -> bool:
        """Whether no epoch remains, also because the last ones brought no improvement (`patience`)."""
        return len(self.history) >= self.spec.epochs or is_out_of_patience(self.spec, self.history)

    def epochs(self) -> Iterator[EpochMetrics]:
        """Train the remaining epochs; each is yielded after its state has been copied for a checkpoint, if one is due.

        Raises:
            Diverged: the loss became NaN or infinite.
            TrainingInterrupted: the deadline was reached, or a rank was told to stop.
            UserError: out of memory with a micro-batch of one image, or no space for a checkpoint.
        """
        with self.checkpoints.completed(), ExitStack() as recording:
            if self._profiler:
                self._end_step = recording.enter_context(self._profiler.record(self.group.device))
            while not self.is_complete:
                row = self._epoch(len(self.history) + 1)
                self.history.append(row)
                self.state.begin_epoch()
                if self.is_complete and not self._save_last:
                    self.checkpoints.give_up()
                elif self.is_complete or self.checkpoints.is_due():
                    self.checkpoints.save(wait=self.is_complete)
                yield row

    def halve_micro_batch(self) -> None:
        """Halve the micro-batch of all further steps."""
        gc.collect()  # also of what a user's model holds in cycles
        self.batch = self.batch.halved()
        message = "out of memory: micro-batches of %d images from now on, %d of them to a step of %d"
        log.warning(message, self.batch.micro, self.batch.accumulation, self.batch.per_rank)
        self.state.optimizer.zero_grad(set_to_none=True)
        vars(self.state.optimizer).pop("grad_scale", None)  # by which a fused update that failed would divide again
        # The scaler of the step that failed would unscale the gradients of the next one twice, or refuse to.
        scaler = torch.amp.GradScaler(self.group.device.type, enabled=self.state.scaler.is_enabled())
        scaler.load_state_dict(self.state.scaler.state_dict())
        self.state.scaler = scaler
        if self.group.device.type == "cuda":
            torch.cuda.empty_cache()
        self.wrap()
        self._on_halved(self.batch)

    # ---- an epoch

    def _epoch(self, number: int) -> EpochMetrics:
        """Train and validate one epoch, or the rest of it."""
        progress = self.state.progress
        began = time.perf_counter()
        set_random_state(progress, self.group, seed=self.spec.seed, epoch=number)
        try:
            with _collections_by_step():
                self._train_steps_that_fit(number, progress)
                for module in self.state.modules.values():
                    reduce_buffers(module, self.group)
                train = self._means(progress.sums.clone(), training=True)
                val = self._means(self.validate(), training=False)
        except TrainingInterrupted:
            progress.seconds += time.perf_counter() - began
            self.checkpoints.save(wait=True)
            # Wait until rank 0 has written: torchrun kills the other ranks 30 s after the first one has ended.
            self.group.any(False)
            raise
        seconds = progress.seconds + time.perf_counter() - began
        return EpochMetrics.measured(train, val, progress.times, epoch=number, lr=progress.lr, seconds=seconds)

    def repeat_epoch(self) -> StepTimes:
        """The times of the steps of one more epoch, which is not in the history: at the last learning rate."""
        self.state.begin_epoch()
        self.state.schedule = ConstantLR(self.state.optimizer, factor=1.0, total_iters=0)  # the other one has ended
        self._end_step = lambda: None  # and the profile
        with _collections_by_step():
            self._train_steps_that_fit(len(self.history) + 1, self.state.progress)
        return self.state.progress.times

    def _train_steps_that_fit(self, number: int, progress: EpochProgress) -> None:
        """Take the remaining steps of an epoch, with smaller micro-batches where memory does not suffice."""
        timer = StepTimer(self.group.device)
        while progress.step < self.steps:
            try:
                return self._train_steps(number, progress, timer)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.group.world_size > 1:
                    where = f"epoch {number}, step {progress.step + 1}"
                    raise OutOfMemory(where, rank=self.group.rank, micro=self.batch.micro, error=error) from None
                log.info("%s", error)
            for status in self.flags.finish_all():  # outside of `except`, where the traceback keeps tensors alive
                self._check(status)
            self.halve_micro_batch()

    def _train_steps(self, number: int, progress: EpochProgress, timer: StepTimer) -> None:
        """Take the remaining steps of an epoch, until a rank asks to stop."""
        set_training_mode(self.model)
        size = len(self.data.train)
        seed = self.spec.seed
        drawn = training_batches(
            size, self.batch, rank=self.group.rank, seed=seed, epoch=number, first_step=progress.step
        )
        order = list(drawn)
        augment = Augmenter(self.spec.augment, size=size, seed=seed, epoch=number, shape=self.data.shape[:2])
        rate = StepRate(progress.step)
        alone = self.group.world_size == 1  # then no other rank needs to agree
        self.flags.begin()
        with closing(self.data.train.batches(order, seed=derived_seed(seed, number))) as batches:
            images = timer.waiting(batches)
            statuses = list[StepStatus]()
            stops = False
            timer.begin()
            while progress.step < self.steps and not stops:
                statuses = self._step(images, augment)
                stops = any(status.stop for status in statuses) or (alone and self.stop_request.is_made)
                timer.mark()
                self._end_step()
                if progress.step % COLLECTED_STEPS == 0:
                    gc.collect(1)
                self.first_step_time = self.first_step_time or time.time()
                if steps_per_second := rate.poll(progress.step):
                    speed = steps_per_second * self.batch.images
                    log.info("epoch %d: step %d of %d, %.1f img/s", number, progress.step, self.steps, speed)
        statuses += self.flags.finish_all()
        for status in statuses:
            self._check(status)
        progress.times += timer.times()
        signalled = [status.signalled_rank for status in statuses if status.signalled_rank is not None]
        if stops or any(status.stop for status in statuses):
            raise self._stopped(min(signalled, default=0 if alone and self.stop_request.is_made else None))

    def _step(self, images: Iterator[ImageBatch], augment: Augmenter) -> list[StepStatus]:
        """Update the parameters once, from one or more micro-batches; returns the status of steps now known."""
        progress = self.state.progress
        state = self.state
        spec = self.spec
        sums = self._compute_gradients(images, augment)
        statuses = self.flags.finish(state.optimizer)
        for status in statuses:
            self._check(status)
        if spec.clip_norm is not None:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), spec.clip_norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.schedule.step()
        if state.average:
            steps_before = len(self.history) * self.steps + progress.step
            state.average.update(spec.ema_decay_after(steps_before))
        progress.sums += sums
        progress.step += 1
        return statuses

    def _compute_gradients(self, batches: Iterator[ImageBatch], augment: Augmenter) -> Tensor:
        """Set the gradients of all parameters from the micro-batches of a step; returns the sums of the step."""
        sums = torch.zeros_like(self.state.progress.sums)
        self.state.optimizer.zero_grad(set_to_none=True)
        for remaining in reversed(range(self.batch.accumulation)):
            micro = next(batches)
            augmented = ImageBatch(augment(micro.pixels, micro.indices), micro.labels, micro.indices)
            images = self.mix(augmented, epoch=len(self.history) + 1, step=self.state.progress.step)
            with self.forward.no_sync() if remaining else nullcontext():
                loss, sums_of_batch = self.forward.compute_loss(images, model=self.model, training=True)
                sums += sums_of_batch
                if not remaining:  # so that the all-reduce of the flags overlaps the backward pass
                    signalled = self.stop_request.is_made
                    self.flags.start(self.state.progress.step + 1, sums[0], stop=self._is_late(), signalled=signalled)
                share = len(images.labels) / self.batch.per_rank
                self.state.scaler.scale(loss * share if share < 1 else loss).backward()  # type: ignore[no-untyped-call]
        return sums

    def _is_late(self) -> bool:
        """Whether the time that is left only suffices for a checkpoint and a validation."""
        needed = self.checkpoints.stop_seconds + self._validation.seconds + self.flags.stop_seconds
        return time.time() + needed > self.deadline

    def _must_stop_validation(self) -> bool:
        """Whether this rank must stop now. After the deadline, a run that has taken no step validates all the same."""
        is_late = time.time() + self.checkpoints.stop_seconds > self.deadline
        return self.stop_request.is_made or (is_late and self.first_step_time is not None)

    def _stopped(self, signalled_rank: int | None) -> TrainingInterrupted:
        epoch = len(self.history) + 1
        step = self.state.progress.step
        where = f"epoch {epoch} of {self.spec.epochs}, after step {step} of {self.steps}"
        return TrainingInterrupted(where, signalled_rank=signalled_rank, world_size=self.group.world_size)

    def _check(self, status: StepStatus) -> None:
        """Raise `Diverged` on all ranks if the loss of one was not finite."""
        if status.bad_rank is not None:
            where = f"epoch {len(self.history) + 1}, step {status.step} of {self.steps}, on rank {status.bad_rank}"
            remedy = "try a lower lr, a warm-up or clip_norm"
            raise Diverged(f"the loss became NaN or infinite in {where}, before the update: {remedy}")

    def validate(self, *, for_warm_up: bool = False) -> Tensor:
        """The sums of this rank's share of the validation images; for a warm-up, of one batch of each size.

        Raises:
            TrainingInterrupted: a rank must stop; on all ranks.
        """
        model = (self.state.average.for_validation() if self.state.average else self.module).eval()
        with unchanged_buffers(*filter(None, [self.objective.loss_module])):
            sums = self._validation.sums(
                lambda images: self.forward.compute_loss(images, model=model)[1],
                micro=self.batch.micro,
                must_stop=self._must_stop_validation,
                for_warm_up=for_warm_up,
            )
        if self.group.any(sums is None) or sums is None:
            rank = self.group.lowest(self.stop_request.is_made)
            raise self._stopped(rank if rank < self.group.world_size else None)
        return sums

    def _means(self, sums: Tensor, *, training: bool) -> Means:
        """The metrics over all ranks."""
        return self.objective.means(self.group.all_reduce_sum(sums), training=training)


@contextmanager
def _collections_by_step() -> Iterator[None]:
    """In the block, Python does not collect garbage by itself, which would pause one rank, and all others with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Validation:
    """The validation images of a rank, in batches that fit into memory."""

    def __init__(self, images: Split, objective: Objective, group: Group) -> None:
        self._images = images
        self._objective = objective
        self._group = group
        self._factor = ENLARGED_ON_GPU if group.device.type == "cuda" else 1
        self._largest = sys.maxsize  # that fits; each rank halves its own, as nothing here is collective
        self.seconds = 0.0  # of the last validation

    @torch.no_grad()
    def sums(
        self,
        measure: Callable[[ImageBatch], Tensor],
        *,
        micro: int,
        must_stop: Callable[[], bool] = lambda: False,
        for_warm_up: bool = False,
    ) -> Tensor | None:
        """The sums of this rank for `Objective.means`; `micro` is the micro-batch of the training.

        `must_stop` is asked before each batch. None if it says so. `for_warm_up`: only the first batch, and the last.
        """
        began = time.perf_counter()
        while True:
            batch = min(micro * self._factor, self._largest)
            try:
                total = self._add_up(measure, batch, must_stop, for_warm_up)
                break
            except RuntimeError as error:
                if batch == 1 or not is_out_of_memory(error):
                    raise
                reason = str(error)
            self._largest = (batch + 1) // 2  # outside of `except`, where the traceback keeps tensors alive
            log.warning("out of memory: batches of %d images from now on (%s)", self._largest, reason)
        if not for_warm_up:
            self.seconds = time.perf_counter() - began
        return total

    def _add_up(
        self, measure: Callable[[ImageBatch], Tensor], batch: int, must_stop: Callable[[], bool], for_warm_up: bool
    ) -> Tensor | None:
        total = self._objective.begin_validation(self._group.device)
        group = self._group
        order = validation_batches(len(self._images), batch=batch, rank=group.rank, world_size=group.world_size)
        if for_warm_up:
            sizes = {len(indices): indices for indices in order}
            order = iter(sizes.values())
        with closing(self._images.batches(order)) as batches:
            ahead: Moment | None = None
            for images in batches:
                if must_stop():
                    return None
                total += measure(images)
                if ahead is not None:  # the host is ahead of a GPU by one batch, so that it stops in time
                    wait_until_reached(ahead)
                ahead = moment(group.device)
        synchronize(group.device)
        return total


def _build_module(spec: Train, data: InputData, group: Group, *, channels_last: bool, downloads: str) -> nn.Module:
    """The model of a training on its device, with pretrained weights and frozen parameters."""
    module = models.build_model(spec, shape=data.shape, classes=data.classes)
    load_pretrained(module, spec, classes=data.classes, downloads=downloads)
    module = module.to(group.device)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    freeze(module, spec.freeze)
    if group.world_size > 1 and data.shape[2] == 1:
        # By their strides, images with one channel are in channels_last. The gradients of the convolutions that read
        # them are, too, and DDP warns if the weights, whose strides its buckets have, are not.
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d) and layer.in_channels == 1:
                layer.to(memory_format=torch.channels_last)
    return module
