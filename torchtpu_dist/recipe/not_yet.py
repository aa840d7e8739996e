"""Keys and values people will write that are not ours: planned parts, and the names other trainers use.

Unlike an unknown key, each of these has a known answer, so the message gives it instead of guessing.
"""

from torchtpu_dist.recipe.scalars import Scalar

# Keys (or whole sections) of parts that do not exist yet. What to do meanwhile follows, when there is anything.
_PLANNED_KEYS: dict[str, str] = {
    "activation_checkpoint.memory_budget": "use activation_checkpoint.mode: none, full or selective",
    "checkpoint.async_mode": "checkpoints are written while training waits; leave the key out",
    "checkpoint.export_dtype": "checkpoints keep float32",
    "checkpoint.exclude_from_loading": "",
    "checkpoint.last_save_model_only": "",
    "checkpoint.last_save_in_hf": "",
    "checkpoint.initial_load_in_hf": "",
    "comm.trace_buf_size": "",
    "compile.backend": "",
    "compile.components": "",
    "data.dataset_path": "data.source: python_stdlib needs no files",
    "data.path": "data.source: python_stdlib needs no files",
    "fault_tolerance": "",
    "float8": "matrices are multiplied in training.mixed_precision_param",
    "launcher.max_restarts": "launcher.infrastructure_restarts counts those after broken hosts",
    "launcher.num_hosts": "the slice says how many hosts there are",
    "launcher.ray": "launcher.backend: ray starts the ranks on a Ray cluster",
    "metrics.enable_wandb": "use metrics.enable_tensorboard",
    "model.converters": "",
    "model.hf_assets_path": "use data.tokenizer: byte",
    "model.tokenizer_path": "use data.tokenizer: byte",
    "mx": "",
    "parallelism.enable_async_tensor_parallel": "",
    "parallelism.enable_compiled_autograd": "",
    "parallelism.module_fqns_per_model_part": "",
    "parallelism.pipeline_parallel_layers_per_stage": "",
    "parallelism.pipeline_parallel_microbatch_size": "",
    "parallelism.pipeline_parallel_schedule": "",
    "parallelism.context_parallel_rotate_method": "",
    "parallelism.expert_tensor_parallel_degree": "",
    "parallelism.fsdp_offload": "",
    "profiling.enable_memory_snapshot": "",
    "profiling.profile_freq": "",
    "profiling.save_traces_folder": "",
    "quantize": "",
    "training.enable_cpu_offload": "",
    "training.gc_freq": "",
}

# Names that other trainers (or an older hand) use for what we have under another name: what to write here.
_NAMED_HERE: dict[str, str] = {
    "batch_size": "training.global_batch_size",
    "checkpoint.checkpoint_id": "checkpoint.resume (never, auto or a folder)",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.folder": "output and run_name (checkpoints are in <output>/<run_name>/checkpoints)",
    "checkpoint.initial_load_path": "checkpoint.resume (never, auto or a folder)",
    "checkpoint.load_step": "checkpoint.resume (never, auto or a folder)",
    "checkpoint.resume_from": "checkpoint.resume (never, auto or a folder)",
    "comm.init_timeout_seconds": "comm.init_timeout_s",
    "comm.train_timeout_seconds": "comm.timeout_s",
    "dataloader": "data",
    "dataset": "data.source",
    "debug.seed": "seed",
    "debug.deterministic": "nothing: a run is always deterministic",
    "experimental": "parallelism",
    "job.config_file": "nothing: the recipe is the first argument of the command",
    "job.description": "a comment in the recipe",
    "job.dump_folder": "output",
    "job.print_config": "nothing: use --dry-run",
    "job": "run_name and output",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor (a factor of optimizer.lr)",
    "lr_scheduler.min_lr": "lr_scheduler.min_lr_factor (a factor of optimizer.lr)",
    "memory_estimation": "nothing: --dry-run prints the estimate",
    "metrics.save_tb_folder": "metrics.enable_tensorboard (events are in <output>/<run_name>/tensorboard)",
    "model.size": "model.flavor",
    "model.d_model": "model.dim",
    "model.hidden_size": "model.dim",
    "model.intermediate_size": "model.ffn_dim",
    "model.num_layers": "model.n_layers",
    "model.num_hidden_layers": "model.n_layers",
    "model.num_attention_heads": "model.n_heads",
    "model.num_key_value_heads": "model.n_kv_heads",
    "name": "run_name",
    "optimizer.betas": "optimizer.beta1 and optimizer.beta2",
    "optimizer.implementation": "nothing: torch's own choice is used",
    "optimizer.learning_rate": "optimizer.lr",
    "optimizer.max_grad_norm": "training.max_norm",
    "out": "output",
    "output_dir": "output",
    "parallelism.cp": "parallelism.context_parallel_degree",
    "parallelism.dp": "parallelism.data_parallel_shard_degree",
    "parallelism.enable_loss_parallel": "parallelism.disable_loss_parallel",
    "parallelism.ep": "parallelism.expert_parallel_degree",
    "parallelism.fsdp": "parallelism.data_parallel_shard_degree",
    "parallelism.pp": "parallelism.pipeline_parallel_degree",
    "parallelism.tp": "parallelism.tensor_parallel_degree",
    "profiler": "profiling",
    "tokenizer": "data.tokenizer",
    "training.batch_size": "training.local_batch_size (one rank at once) or training.global_batch_size (a step)",
    "training.compile": "compile.enable",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.dataset": "data.source",
    "training.deterministic": "nothing: a run is always deterministic",
    "training.gradient_accumulation_steps": "training.global_batch_size (accumulation follows from it)",
    "training.learning_rate": "optimizer.lr",
    "training.lr": "optimizer.lr",
    "training.max_steps": "training.steps",
    "training.seed": "seed",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "validator": "validation",
}

# Values of keys we have that belong to parts that do not exist yet: path -> {value: what to write meanwhile}.
_PLANNED_VALUES: dict[str, dict[Scalar, str]] = {
    "compile.enable": {True: "write false"},
    "data.source": dict.fromkeys(("c4", "c4_test", "hugging_face", "text"), "write python_stdlib"),
    "device": dict.fromkeys(("tpu", "xla_cpu"), "write cpu (or auto): CPU processes on an emulated slice"),
    "optimizer.name": dict.fromkeys(("Adam", "SGD", "Muon", "DistMuon"), "write AdamW"),
    "profiling.enable_profiling": {True: "write false"},
    "training.mixed_precision_reduce": {"bfloat16": "write float32"},
}


def answer_for_key(path: str) -> str | None:
    """What to say about the unknown key ``path``, or ``None`` when nothing is known about it.

    A section in the tables answers for every key below it.
    """
    for known in (path, path.partition(".")[0]):
        if known in _NAMED_HERE:
            target = _NAMED_HERE[known]
            if target.isidentifier() and known != path:  # a section of another name: its key keeps its name
                target = f"{target}.{path.partition('.')[2]}"
            if target.startswith("nothing: "):
                return f"there is no such key; {target.removeprefix('nothing: ')}"
            return f"here this is called {target}"
        if known in _PLANNED_KEYS:
            return _not_supported(_PLANNED_KEYS[known])
    return None


def answer_for_value(path: str, value: object) -> str | None:
    """What to say about ``value`` for the known key ``path`` if it belongs to a planned part, else ``None``."""
    for planned, remedy in _PLANNED_VALUES.get(path, {}).items():
        if value == planned and type(value) is type(planned):
            shown = str(value).lower() if isinstance(value, bool) else value
            return f"got {shown}, {_not_supported(remedy)}"
    return None


def _not_supported(remedy: str) -> str:
    return f"not supported yet{f'; {remedy}' if remedy else '; leave it out'}"
