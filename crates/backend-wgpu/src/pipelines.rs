//! Compiled kernels, each variant once per device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::AllocError;

use crate::health::Health;
use crate::shader::{Access, Variant};

/// A kernel the driver took.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

#[derive(Default, Debug)]
pub(crate) struct Pipelines(Mutex<BTreeMap<Variant, Arc<Pipeline>>>);

impl Pipelines {
    /// The compiled `variant`. A driver that refuses a kernel is no use: that is an error of the device.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        health: &Health,
        variant: &Variant,
    ) -> Result<Arc<Pipeline>, AllocError> {
        health.check()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = known.get(variant) {
            return Ok(Arc::clone(pipeline));
        }
        let pipeline = Arc::new(compile(device, variant)?);
        known.insert(variant.clone(), Arc::clone(&pipeline));
        Ok(pipeline)
    }
}

fn compile(device: &wgpu::Device, variant: &Variant) -> Result<Pipeline, AllocError> {
    let filters =
        [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    let made = make(device, variant);
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

fn make(device: &wgpu::Device, variant: &Variant) -> Pipeline {
    let name = format!("{:?}", variant.kernel);
    let text = variant.text();
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(&name),
        source: wgpu::ShaderSource::Wgsl(text.source.into()),
    });
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
        cache: None,
    });
    Pipeline { pipeline, layout }
}
