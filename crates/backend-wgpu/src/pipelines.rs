//! Compiled kernels, each variant once per device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::AllocError;

use crate::disk_cache::DiskCache;
use crate::health::Health;
use crate::shader::{Access, Variant};

/// A kernel the driver took.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

#[derive(Default, Debug)]
pub(crate) struct Pipelines {
    known: Mutex<BTreeMap<Variant, Arc<Pipeline>>>,
    disk: Option<DiskCache>,
    /// Whether there are some that the disk does not have.
    has_new: AtomicBool,
}

impl Pipelines {
    pub(crate) fn new(disk: Option<DiskCache>) -> Self {
        Self { disk, ..Self::default() }
    }

    /// Keeps on disk what was compiled since the last time. A disk that refuses costs compiling again at the
    /// next start.
    pub(crate) fn save(&self) {
        let Some(disk) = &self.disk else { return };
        if self.has_new.swap(false, Ordering::Relaxed)
            && let Err(error) = disk.save()
        {
            tracing::debug!(%error, "compiled kernels could not be kept on disk");
        }
    }

    /// The compiled `variant`. A driver that refuses a kernel is no use: that is an error of the device.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        health: &Health,
        variant: &Variant,
    ) -> Result<Arc<Pipeline>, AllocError> {
        debug_assert!(variant.is_known(), "no test translates {variant:?}");
        health.check()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = known.get(variant) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(compile(device, variant, self.disk.as_ref())?);
        self.has_new.store(true, Ordering::Relaxed);
        known.insert(variant.clone(), Arc::clone(&pipeline));
        Ok(pipeline)
    }
}

fn compile(
    device: &wgpu::Device,
    variant: &Variant,
    disk: Option<&DiskCache>,
) -> Result<Pipeline, AllocError> {
    let filters =
        [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    let made = make(device, variant, disk);
    // Scopes end in the reverse order of their beginning.
    let errors = scopes.into_iter().rev().filter_map(|scope| pollster::block_on(scope.pop()));
    match errors.collect::<Vec<_>>().into_iter().next() {
        Some(error) => {
            let reason = format!("its driver refused the kernel {:?}: {error}", variant.kernel);
            Err(AllocError::DeviceLost { reason })
        }
        None => Ok(made),
    }
}

fn make(device: &wgpu::Device, variant: &Variant, disk: Option<&DiskCache>) -> Pipeline {
    let name = format!("{:?}", variant.kernel);
    let text = variant.text();
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(&name),
        source: wgpu::ShaderSource::Wgsl(text.source.into()),
    };
    // With the counters that wgpu gives every loop, drivers unroll none: an H100 decoded at half the speed.
    let checks =
        wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
    // SAFETY: all kernels are our own. Every loop of theirs counts up to a constant or to a number of the
    // recording or the run, and ends whatever weights, tokens and positions are.
    let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
    let uniform = wgpu::BufferBindingType::Uniform;
    let storage = |read_only| wgpu::BufferBindingType::Storage { read_only };
    let kinds = [uniform, uniform, storage(false)];
    let operands = text.accesses.iter().map(|access| storage(*access == Access::Read));
    let entries: Vec<_> = (0..)
        .zip(kinds.into_iter().chain(operands))
        .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        })
        .collect();
    let layout = device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(&name), entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&name),
        bind_group_layouts: &[Some(&layout)],
        ..Default::default()
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: disk.map(|disk| &disk.cache),
    });
    Pipeline { pipeline, layout }
}
