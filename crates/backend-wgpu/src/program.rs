//! A checked recording as dispatches, and one run of it.

use std::sync::Arc;

use exo_backend::{
    Buffer, CancelToken, Capacity, DeviceOwned, Exchange, FAULT_WORDS, Op, Owner, Program, Recording,
    RunError, RunShape, check_op,
};

use crate::dispatch::{Grid, PlannedDispatch, plan};
use crate::fuse::first_together;
use crate::inner::DeviceInner;
use crate::pipelines::Pipeline;
use crate::storage;

/// One dispatch, bound.
#[derive(Debug)]
struct Dispatch {
    pipeline: Arc<Pipeline>,
    bindings: wgpu::BindGroup,
    grid: Grid,
}

#[derive(Debug)]
enum Step {
    Dispatch(Dispatch),
    Exchange { x: Buffer, width: usize },
    LayerBoundary { layer: u32 },
}

/// What a program is made of; shared with the streams that ran it until they know that it went well.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) owner: Owner,
    steps: Vec<Step>,
    capacity: Capacity,
    /// The numbers of a run.
    pub(crate) run: wgpu::Buffer,
    pub(crate) fault: wgpu::Buffer,
}

/// A recording on a graphics processor.
#[derive(Debug)]
pub struct GpuProgram {
    pub(crate) inner: Arc<Inner>,
    /// Keeps the operands.
    _ops: Vec<Op>,
}

impl DeviceOwned for GpuProgram {
    fn owner(&self) -> Owner {
        self.inner.owner
    }
}

impl Program for GpuProgram {}

impl GpuProgram {
    /// Panics on operands that contradict each other or belong elsewhere.
    pub(crate) fn new(device: &DeviceInner, recording: Recording) -> Result<Self, RunError> {
        let mut capacity = Capacity::default();
        recording.ops.iter().for_each(|op| check_op(op, device.owner, &mut capacity));
        let drafts = draft(device, &recording.ops)?;
        let usage = wgpu::BufferUsages::COPY_DST;
        let run = device.memory.raw("the numbers of a run", 16, usage | wgpu::BufferUsages::UNIFORM)?;
        let usage = usage | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::STORAGE;
        let fault = device.memory.raw("the faults of kernels", 4 * FAULT_WORDS as u64, usage)?;
        let plans = drafts.iter().filter_map(|draft| match draft {
            Draft::Plan(plan) => Some(plan),
            Draft::Pause(_) => None,
        });
        let mut dispatches = bind(device, &plans.collect::<Vec<_>>(), &run, &fault)?.into_iter();
        let step = |draft| match draft {
            Draft::Plan(_) => dispatches.next().map(Step::Dispatch),
            Draft::Pause(step) => Some(step),
        };
        let steps = drafts.into_iter().filter_map(step).collect();
        let inner = Inner { owner: device.owner, steps, capacity, run, fault };
        Ok(Self { inner: Arc::new(inner), _ops: recording.ops })
    }
}

/// A step before its bindings are made.
enum Draft {
    Plan(PlannedDispatch),
    Pause(Step),
}

/// What `ops` become, those together that go together.
fn draft(device: &DeviceInner, ops: &[Op]) -> Result<Vec<Draft>, RunError> {
    let mut drafts = Vec::new();
    let mut rest = ops;
    while let [op, ..] = rest {
        let (taken, plans) = match first_together(device, rest)? {
            Some(fused) => fused,
            None => {
                let mut plans = Vec::new();
                plan(device, op, &mut plans)?;
                (1, plans)
            }
        };
        if !plans.iter().all(PlannedDispatch::fits) {
            return Err(RunError::UnsupportedOp { op: op.kind(), dtype: None });
        }
        drafts.extend(plans.into_iter().map(Draft::Plan));
        match op {
            Op::Exchange { x, width } => {
                drafts.push(Draft::Pause(Step::Exchange { x: x.clone(), width: *width }))
            }
            Op::LayerBoundary { layer } => drafts.push(Draft::Pause(Step::LayerBoundary { layer: *layer })),
            _ => {}
        }
        rest = &rest[taken..];
    }
    Ok(drafts)
}

/// Makes the bindings: the numbers of all ops lie in one buffer.
fn bind(
    device: &DeviceInner,
    plans: &[&PlannedDispatch],
    run: &wgpu::Buffer,
    fault: &wgpu::Buffer,
) -> Result<Vec<Dispatch>, RunError> {
    let raw = &device.memory.device;
    let stride = raw.limits().min_uniform_buffer_offset_alignment.max(64) as usize;
    let mut bytes = vec![0u8; stride * plans.len()];
    for (slot, plan) in bytes.chunks_exact_mut(stride).zip(plans) {
        let numbers: &[u8] = bytemuck::cast_slice(&plan.numbers);
        slot[..numbers.len()].copy_from_slice(numbers);
    }
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let ops = device.memory.raw("the numbers of ops", bytes.len() as u64, usage)?;
    device.queue.write(&device.memory, &ops, 0, &bytes)?;
    let bound = plans.iter().enumerate().map(|(i, plan)| {
        let pipeline = device.pipelines.get(raw, &device.memory.health, &plan.variant)?;
        let numbers = wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &ops,
            offset: (i * stride) as u64,
            size: std::num::NonZeroU64::new(64),
        });
        let fixed = [run.as_entire_binding(), numbers, fault.as_entire_binding()];
        let resources = fixed.into_iter().chain(plan.operands.iter().map(|b| b.as_entire_binding()));
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let bindings = raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        Ok(Dispatch { pipeline, bindings, grid: plan.grid })
    });
    let bound = bound.collect::<Result<Vec<_>, RunError>>()?;
    device.memory.health.check_run()?;
    Ok(bound)
}

/// How the sums of a tensor-parallel group come about in the middle of a run.
pub(crate) trait SumOver {
    fn sum(&mut self, x: &Buffer, len: usize) -> Result<(), RunError>;
}

impl Inner {
    pub(crate) fn dispatches(&self, shape: RunShape) -> usize {
        let is_used =
            |step: &&Step| matches!(step, Step::Dispatch(dispatch) if dispatch.grid.size(shape).is_some());
        self.steps.iter().filter(is_used).count()
    }

    /// Queues one run; what the device makes of it shows at the next look.
    pub(crate) fn run(
        self: &Arc<Self>,
        device: &DeviceInner,
        shape: RunShape,
        exchange: &dyn Exchange,
        over: &mut dyn SumOver,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        self.capacity.assert_holds(shape);
        device.memory.health.check_run()?;
        let numbers = [shape.tokens as u32, shape.selected as u32, 0, 0];
        let mut steps = self.steps.iter().peekable();
        while steps.peek().is_some() {
            let pause = device.queue.record_run(&device.memory, &self.run, numbers, |encoder| {
                encode(encoder, &mut steps, shape, exchange.is_alone(), cancel)
            })?;
            match pause {
                Pause::None => {}
                Pause::Exchange { x, width } => over.sum(x, shape.tokens * width)?,
                Pause::Cancelled { layer } => return Err(RunError::Cancelled { layer }),
            }
        }
        device.memory.health.check_run()
    }
}

/// Why encoding stopped.
enum Pause<'a> {
    None,
    Exchange { x: &'a Buffer, width: usize },
    Cancelled { layer: u32 },
}

/// Writes commands up to a pause, and counts dispatches.
fn encode<'a>(
    encoder: &mut wgpu::CommandEncoder,
    steps: &mut impl Iterator<Item = &'a Step>,
    shape: RunShape,
    is_alone: bool,
    cancel: &CancelToken,
) -> (u64, Pause<'a>) {
    let mut dispatches = 0;
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    for step in steps {
        match step {
            Step::Dispatch(dispatch) => {
                let Some([x, y, z]) = dispatch.grid.size(shape) else { continue };
                pass.set_pipeline(&dispatch.pipeline.pipeline);
                pass.set_bind_group(0, &dispatch.bindings, &[]);
                pass.dispatch_workgroups(x, y, z);
                dispatches += 1;
            }
            Step::Exchange { .. } if is_alone => {}
            Step::Exchange { x, width } => return (dispatches, Pause::Exchange { x, width: *width }),
            Step::LayerBoundary { layer } if cancel.is_cancelled() => {
                return (dispatches, Pause::Cancelled { layer: *layer });
            }
            Step::LayerBoundary { .. } => {}
        }
    }
    (dispatches, Pause::None)
}

/// The driver's buffer behind a handle.
pub(crate) fn raw(handle: &Buffer, owner: Owner) -> &wgpu::Buffer {
    &storage::buffer(handle, owner).data.buffer
}
