# ruff: noqa: E501
"""Every option of the reference's config, and what becomes of it: the one table.

The builder works by it and `docs/python.md` shows it. An option is *mapped* to a field of a resource, *replaced*
(accepted; something else does its work, `config.replaced` says what) or *refused* (there is nothing like it yet).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple


class Option(NamedTuple):
    """One option.

    Attributes:
        method: the config's method that takes it.
        name: its name.
        kind: what becomes of it.
        training: field of an OfflineTraining's spec ("" for none), by its YAML names.
        recording: field of an OfflineRecording's spec.
        remark: what it means here, what does its work, or why it is refused.
    """

    method: str
    name: str
    kind: Literal["mapped", "replaced", "refused"]
    training: str
    recording: str
    remark: str


_Row = tuple[Literal["mapped", "replaced", "refused"], str, str, str, str]


def _both(name: str, field: str, remark: str) -> _Row:
    return "mapped", name, field, field, remark


def _each(name: str, training: str, recording: str, remark: str) -> _Row:
    return "mapped", name, training, recording, remark


def _training(name: str, field: str, remark: str) -> _Row:
    return "mapped", name, field, "", remark


def _recording(name: str, field: str, remark: str) -> _Row:
    return "mapped", name, "", field, remark


def _model(name: str, field: str, remark: str) -> _Row:
    return "mapped", name, f"model.{field}", f"policy.train.model.{field}", remark


def _replaced(names: str, remark: str) -> _Row:
    return "replaced", names, "", "", remark


def _refused(names: str, remark: str) -> _Row:
    return "refused", names, "", "", remark


_OWN = "Hindcast's own."
_CLUSTER = "a run goes on from its last checkpoint by itself; on a cluster, `spec.runPolicy` says how often"

# fmt: off
_ROWS: dict[str, tuple[_Row, ...]] = {
    "environment": (
        _both("env", "environment.id", 'A Gymnasium id, "package.module:Class", an environment class, a name given to `register_env`.'),
        _both("env_config", "environment.kwargs", "Keyword arguments of the environment."),
        _training("observation_space", "observationSpace", "Needed only without an environment, for data that do not say their spaces."),
        _training("action_space", "actionSpace", "As `observation_space`."),
        _both("normalize_actions", "environment.normalizeActions", ""),
        _both("clip_actions", "environment.clipActions", ""),
        _both("wrappers", "environment.wrappers", f"{_OWN} Gymnasium wrappers, innermost first."),
        _both("max_episode_steps", "environment.maxEpisodeSteps", f"{_OWN} Truncates episodes."),
        _replaced("disable_env_checking", "environments are used as they are; what they return is checked against their spaces"),
        _refused("clip_rewards is_atari", "rewards and frames are recorded as they come; put a Gymnasium wrapper into `wrappers`"),
        _refused("render_env action_mask_key env_task_fn", "rendering, action masks and tasks are not available"),
    ),
    "env_runners": (
        _recording("num_env_runners", "runners.replicas", "0 counts as 1. `evaluation_num_env_runners` goes before it."),
        _each("num_envs_per_env_runner", "evaluation.envsPerRunner", "runners.envsPerRunner", "Environments stepped side by side."),
        _recording("num_cpus_per_env_runner", "runners.cpus", ""),
        _recording("explore", "policy.explore", "Of recorded episodes. `evaluation_config` goes before it."),
        _each("observation_filter", "model.observationFilter", "policy.train.model.observationFilter", '"NoFilter" or "MeanStdFilter"; saved with the policy.'),
        _replaced("batch_mode", "recorded and evaluated episodes are always whole; PPO's samples are cut at the end of a batch and bootstrapped there"),
        _replaced("rollout_fragment_length", "PPO takes train_batch_size_per_learner / num_envs_per_env_runner steps of each environment"),
        _replaced("gym_env_vectorize_mode remote_worker_envs remote_env_batch_wait_ms", "a runner steps its environments one after the other, around one forward pass for all"),
        _replaced("create_local_env_runner create_env_on_local_worker validate_env_runners_after_construction", "there is no local runner besides the others"),
        _replaced("sample_timeout_s max_requests_in_flight_per_env_runner", "runners take ranges of episodes, each of which is made whole or not at all"),
        _replaced("merge_env_runner_states broadcast_env_runner_states use_env_runner_state_server env_runner_state_server_max_concurrency "
                  "use_worker_filter_stats update_worker_filter_stats synchronize_filter", "filters are part of the policy, which every runner gets whole"),
        _replaced("compress_observations", "`output_compression`"),
        _replaced("episodes_to_numpy episode_lookback_horizon", "episodes are columns from the start"),
        _refused("env_to_module_connector module_to_env_connector add_default_connectors_to_env_to_module_pipeline "
                 "add_default_connectors_to_module_to_env_pipeline", "use model_config's observation_filter and frame_stack, which recording and evaluation apply alike"),
        _refused("env_runner_cls num_gpus_per_env_runner custom_resources_per_env_runner exploration_config sample_collector "
                 "preprocessor_pref enable_tf1_exec_eagerly sampler_perf_stats_ema_coef enable_connectors", "there is nothing that it could change"),
        _refused("num_rollout_workers", "the reference renamed it; use num_env_runners"),
        _refused("num_envs_per_worker", "the reference renamed it; use num_envs_per_env_runner"),
    ),
    "training": (
        _training("initial_checkpoint", "initialCheckpoint", f"{_OWN} Starts from that checkpoint's policy."),
        _training("learner_connector", "pipeline.connectors", 'As of `learners()`.'),
        _refused("train_batch_size", "it depends on the number of learners; use train_batch_size_per_learner"),
        _refused("num_sgd_iter", "the reference renamed it; use num_epochs"),
        _refused("sgd_minibatch_size", "the reference renamed it; use minibatch_size"),
        _refused("lr_schedule", "give the points to lr itself: lr=[[0, 1e-3], [100000, 1e-4]]"),
        _refused("entropy_coeff_schedule", "give the points to entropy_coeff itself"),
        _refused("model vf_share_layers", "give it to rl_module(model_config=...)"),
        _refused("optimizer", "the optimiser is Adam"),
        _replaced("use_critic use_gae", "PPO has a critic and uses GAE"),
        _replaced("shuffle_batch_per_epoch", "every epoch has an order of its own"),
        _replaced("num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor max_requests_in_flight_per_sampler_worker",
                  "data reach the learner through the pipeline"),
        _refused("learner_class learner_config_dict add_default_connectors_to_learner_pipeline", 'an own loss is an own algorithm: AlgorithmConfig("package.module:Class")'),
    ),
    "learners": (
        _training("num_learners", "learners.replicas", "0 counts as 1."),
        _training("num_cpus_per_learner", "learners.cpus", '"auto" leaves it open.'),
        _training("num_gpus_per_learner", "learners.gpus", "0 keeps to the CPU; not given takes a GPU when there is one."),
        _training("learner_connector", "pipeline.connectors", 'A library name, "package.module:Class", a class that can be imported, or a list of these.'),
        _replaced("num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor max_requests_in_flight_per_learner",
                  "data reach the learner through the pipeline"),
        _replaced("local_gpu_idx", "CUDA_VISIBLE_DEVICES"),
        _refused("learner_class learner_config_dict add_default_connectors_to_learner_pipeline", 'an own loss is an own algorithm: AlgorithmConfig("package.module:Class")'),
        _refused("custom_resources_per_learner", "on a cluster, spec.cluster places the learners"),
    ),
    "offline_data": (
        _training("input_", "input", "A path, a glob, a URI, a list of them, or {path: weight}."),
        _training("input_read_schema", "input.schema", "From Hindcast's column name to the data's."),
        _training("input_read_method", "input.format", "`read_parquet`, `read_json`, `read_csv`, `read_text`, `read_images`, `read_binary_files`, `read_tfrecords`."),
        _training("input_read_method_kwargs", "input.columns, input.filter, input.readOptions", "`columns`: a list; `filter`: comparisons as in the YAML; others are the reader's."),
        _training("input_read_sample_batches", "input.format", "True is SampleBatch; what is not said is found in the data."),
        _training("actions_in_input_normalized", "input.actionsNormalized", "Not given: recordings of Hindcast and the reference are, other data are not."),
        _training("input_compress_columns", "input.compressColumns", "Not given: any column that is compressed."),
        _training("ignore_final_observation", "input.ignoreFinalObservation", "For data without `new_obs`."),
        _training("input_filesystem", "input.path", '"gcs", "s3" or "abs": the scheme of paths that have none.'),
        _training("map_batches_kwargs", "pipeline.dataWorkers", "`concurrency` (a number or an interval), `num_cpus`, `num_gpus`, `memory`."),
        _training("iter_batches_kwargs", "pipeline.prefetchBatches", "`prefetch_batches`."),
        _training("dataset_num_iters_per_learner", "pipeline.datasetNumItersPerLearner", "Updates of an iteration; None is one pass over the data."),
        _training("materialize_data", "pipeline.residency", "True is Resident, False Streaming, not given Auto. The batches are the same."),
        _training("materialize_mapped_data", "pipeline.residency", "As `materialize_data`; nothing is frozen by it."),
        _training("prelearner_class", "pipeline.preLearner", 'A subclass of OfflinePreLearner that can be imported, or its "package.module:Class".'),
        _training("prelearner_kwargs", "pipeline.preLearnerKwargs", "Keyword arguments of the pre-learner."),
        _training("offline_data_class", "pipeline.offlineData", 'A subclass of OfflineData that can be imported, or its "package.module:Class".'),
        _training("sampling", "pipeline.sampling", f'{_OWN} "Epochs" or "WithReplacement".'),
        _training("window_steps", "pipeline.windowSteps", f"{_OWN} Timesteps that are shuffled together."),
        _training("window_bytes", "pipeline.windowBytes", f"{_OWN} Bytes that are shuffled together."),
        _training("resident_budget", "pipeline.residentBudget", f"{_OWN} Bytes that resident data may take."),
        _training("validate_data", "pipeline.validateData", f"{_OWN} Checks shapes, bounds and for NaN."),
        _recording("output", "output.path", "Folder of the dataset. Every `evaluate()` adds episodes; `stop()` completes it."),
        _recording("output_write_episodes", "output.format", "True is Episodes, False Columns."),
        _recording("output_write_method", "output.format", '"write_parquet" is what `output_write_episodes` says, "write_json" JSON, "write_csv" CSV; these go before it.'),
        _recording("output_format", "output.format", f'{_OWN} "Episodes", "Columns", "JSON", "CSV" or "SampleBatch"; goes before the two above.'),
        _recording("output_max_rows_per_file", "output.maxRowsPerFile", ""),
        _recording("output_max_file_size", "output.maxFileSize", "Bytes, or a quantity such as 64Mi."),
        _recording("output_filesystem", "output.path", "As `input_filesystem`."),
        _recording("output_compress_columns", "output.compressColumns", "Of SampleBatch; other formats do without, and Parquet has `output_compression`. Not given: none."),
        _recording("output_compression", "output.compression", f'{_OWN} "lz4", "zstd" or "none".'),
        _recording("output_on_existing", "output.onExisting", f'{_OWN} "Resume", "Fail" or "Replace".'),
        _replaced("input_read_episodes", "the layout of the data is found in their schema"),
        _replaced("input_read_batch_size", "units of whole row groups are read, and every timestep is delivered once per epoch whatever their size"),
        _replaced("output_write_remaining_data", "everything that was played is always written"),
        _replaced("prelearner_buffer_class prelearner_buffer_kwargs", "`window_steps`: timesteps are shuffled in windows, not drawn from a buffer"),
        _replaced("prelearner_module_synch_period", "targets are computed on the learner, with its own weights"),
        _replaced("shuffle_buffer_size", "`window_steps`"),
        _replaced("postprocess_inputs", "targets are computed over whole episodes where an algorithm needs them"),
        _refused("input_filesystem_kwargs output_filesystem_kwargs", "credentials come from the environment; other settings stand in the URI"),
        _refused("input_config output_config", "these are of the reference's old stack; use a path"),
        _refused("output_write_method_kwargs", "files are written by Hindcast itself; `output_max_rows_per_file`, `output_max_file_size` and `output_compression` say how"),
        _refused("prelearner_use_recorded_module_states", "recurrent modules are not available yet"),
        _refused("offline_sampling", "it is of the reference's old stack"),
    ),
    "evaluation": (
        _training("evaluation_interval", "evaluation.interval", "Iterations; None or 0 evaluates only when `evaluate()` is called."),
        _each("evaluation_duration", "evaluation.duration", "duration", 'Of a recording: what one `evaluate()` adds. "auto" needs evaluation_parallel_to_training.'),
        _each("evaluation_duration_unit", "evaluation.durationUnit", "duration", '"episodes" or "timesteps".'),
        _each("evaluation_num_env_runners", "evaluation.runners", "runners.replicas", "Processes; clamped to the machine's processors, with a note."),
        _training("evaluation_parallel_to_training", "evaluation.parallelToTraining", "The result is that of the iteration before, and says so in its training_iteration."),
        _training("evaluation_sample_timeout_s", "evaluation.sampleTimeoutSeconds", ""),
        _each("evaluation_config", "evaluation.explore", "policy.explore", "{\"explore\": ...}. Default: evaluations take the policy's mode, recordings sample."),
        _training("custom_evaluation_function", "evaluation.customFunction", "Called as f(policy, environment, seed), returns a dictionary."),
        _replaced("evaluation_force_reset_envs_before_iteration", "every evaluation starts its episodes anew"),
        _replaced("always_attach_evaluation_results", "the latest evaluation is in every result, with the iteration that it belongs to"),
        _replaced("evaluation_auto_duration_min_env_steps_per_sample evaluation_auto_duration_max_env_steps_per_sample", '"auto" goes by rounds of whole episodes'),
        _replaced("evaluation_unhealthy_workers_timeout_s evaluation_error_after_n_consecutive_skips", "`evaluation_sample_timeout_s`"),
        _refused("evaluation_num_workers", "the reference renamed it; use evaluation_num_env_runners"),
        _refused("off_policy_estimation_methods ope_split_batch_by_episode offline_evaluation_interval offline_evaluation_type offline_evaluation_duration "
                 "num_offline_eval_runners offline_eval_runner_class offline_loss_for_module_fn offline_eval_batch_size_per_runner "
                 "dataset_num_iters_per_offline_eval_runner offline_eval_rl_module_inference_only num_cpus_per_offline_eval_runner "
                 "num_gpus_per_offline_eval_runner custom_resources_per_offline_eval_runner offline_evaluation_timeout_s "
                 "offline_evaluation_parallel_to_training max_requests_in_flight_per_offline_eval_runner broadcast_offline_eval_runner_states "
                 "validate_offline_eval_runners_after_construction restart_failed_offline_eval_runners ignore_offline_eval_runner_failures "
                 "max_num_offline_eval_runner_restarts offline_eval_runner_health_probe_timeout_s offline_eval_runner_restore_timeout_s",
                 "evaluation on held-out data is not available yet"),
    ),
    "rl_module": (
        _each("model_config", "model", "policy.train.model", "A DefaultModelConfig, or a dictionary with its fields."),
        _refused("rl_module_spec model_config_dict", "give model_config; own modules are not available yet"),
        _refused("algorithm_config_overrides_per_module", "there is one module"),
    ),
    "DefaultModelConfig": (
        _model("fcnet_hiddens", "fcnetHiddens", ""),
        _model("fcnet_activation", "fcnetActivation", '"swish" is silu, None is linear.'),
        _model("conv_filters", "convFilters", "[channels, kernel, stride] each; kernels and strides are square."),
        _model("conv_activation", "convActivation", ""),
        _model("head_fcnet_hiddens", "headFcnetHiddens", ""),
        _model("free_log_std", "freeLogStd", ""),
        _model("log_std_clip_param", "logStdClip", ""),
        _model("vf_share_layers", "vfShareLayers", "True, as in the reference; without a model config False."),
        _model("distribution", "distribution", f"{_OWN} Which distribution acts."),
        _model("observation_filter", "observationFilter", f"{_OWN} As of `env_runners()`."),
        _model("frame_stack", "frameStack", f"{_OWN} Number of last observations that the policy sees."),
        _replaced("head_fcnet_activation", "heads have the encoder's activation"),
        _refused("use_lstm max_seq_len lstm_cell_size lstm_use_prev_action lstm_use_prev_reward lstm_kernel_initializer "
                 "lstm_kernel_initializer_kwargs lstm_bias_initializer lstm_bias_initializer_kwargs", "recurrent modules are not available yet"),
        _refused("fcnet_kernel_initializer fcnet_kernel_initializer_kwargs fcnet_bias_initializer fcnet_bias_initializer_kwargs "
                 "conv_kernel_initializer conv_kernel_initializer_kwargs conv_bias_initializer conv_bias_initializer_kwargs "
                 "head_fcnet_kernel_initializer head_fcnet_kernel_initializer_kwargs head_fcnet_bias_initializer "
                 "head_fcnet_bias_initializer_kwargs fusionnet_kernel_initializer fusionnet_kernel_initializer_kwargs "
                 "fusionnet_bias_initializer fusionnet_bias_initializer_kwargs", "weights start as the module defines it"),
        _refused("fcnet_use_layernorm head_fcnet_use_layernorm", "layer normalisation is not available"),
        _refused("fusionnet_hiddens fusionnet_activation", "one encoder sees all observations"),
    ),
    "debugging": (
        _both("seed", "seed", "Of weights, data order, episodes. None is 0: runs are always seeded."),
        _replaced("log_level", 'logging.getLogger("hindcast")'),
        _replaced("log_sys_usage fake_sampler", "results say where the time went"),
    ),
    "framework": (
        _replaced("framework", "PyTorch; another framework is refused"),
        _refused("eager_tracing eager_max_retraces tf_session_args local_tf_session_args", "these are TensorFlow's"),
        _refused("torch_compile_learner torch_compile_learner_what_to_compile torch_compile_learner_dynamo_mode "
                 "torch_compile_learner_dynamo_backend torch_compile_worker torch_compile_worker_dynamo_backend "
                 "torch_compile_worker_dynamo_mode", "modules are not compiled yet"),
        _replaced("torch_ddp_kwargs", "learners find their own settings"),
        _replaced("torch_skip_nan_gradients", "a NaN ends the training and says where it arose"),
    ),
    "api_stack": (
        _replaced("enable_rl_module_and_learner enable_env_runner_and_connector_v2", "there is one stack"),
    ),
    "resources": (
        _replaced("num_cpus_for_main_process num_cpus_for_local_worker placement_strategy", "on a cluster, spec.cluster.resources"),
        _refused("num_gpus num_learner_workers num_gpus_per_learner_worker num_cpus_per_learner_worker _fake_gpus local_gpu_idx",
                 "the reference moved it; use learners()"),
        _refused("num_cpus_per_worker num_gpus_per_worker custom_resources_per_worker custom_resources_for_main_process",
                 "the reference moved it; use env_runners()"),
    ),
    "reporting": (
        _replaced("metrics_num_episodes_for_smoothing keep_per_episode_custom_metrics metrics_episode_collection_timeout_s custom_stats_cls_lookup",
                  "results are of the iteration itself"),
        _replaced("min_time_s_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_iteration", "`dataset_num_iters_per_learner`"),
        _replaced("log_gradients", "gradient norms are in every result"),
    ),
    "checkpointing": (
        _replaced("export_native_model_files", "checkpoints are safetensors and JSON"),
        _replaced("checkpoint_trainable_policies_only", "there is one policy"),
    ),
    "fault_tolerance": (
        _replaced("restart_failed_env_runners ignore_env_runner_failures max_num_env_runner_restarts delay_between_env_runner_restarts_s "
                  "num_consecutive_env_runner_failures_tolerance restart_failed_sub_environments env_runner_health_probe_timeout_s "
                  "env_runner_restore_timeout_s", _CLUSTER),
    ),
    "callbacks": (
        _refused("callbacks_class on_algorithm_init on_train_result on_evaluate_start on_evaluate_end on_evaluate_offline_start "
                 "on_evaluate_offline_end on_env_runners_recreated on_offline_eval_runners_recreated on_checkpoint_loaded "
                 "on_environment_created on_episode_created on_episode_start on_episode_step on_episode_end on_sample_end",
                 "callbacks are not available yet; read what train() and evaluate() return"),
    ),
    "multi_agent": (
        _refused("policies policy_map_capacity policy_mapping_fn policies_to_train policy_states_are_swappable observation_fn count_steps_by "
                 "algorithm_config_overrides_per_module replay_mode policy_map_cache", "several agents are not available yet"),
    ),
}
# fmt: on

OPTIONS: dict[str, dict[str, Option]] = {
    method: {name: Option(method, name, kind, *rest) for kind, names, *rest in rows for name in names.split()}
    for method, rows in _ROWS.items()
}
"""Method -> name -> option. `training` takes the algorithm's own options besides."""


def methods_with(name: str) -> Iterator[str]:
    """The methods that take an option of this name."""
    return (method for method, options in OPTIONS.items() if name in options)


def option_table() -> str:
    """The table of all options as Markdown, rows of the same fate together."""
    lines = ["| Method | Reference's option | Field | Remarks |", "|---|---|---|---|"]
    for method, rows in _ROWS.items():
        for kind, names, training, recording, remark in rows:
            shown = ", ".join(f"`{name}`" for name in names.split())
            lines.append(f"| `{method}` | {shown} | {_fate(kind, training, recording)} | {remark} |")
    return "\n".join(lines)


def _fate(kind: str, training: str, recording: str) -> str:
    if kind != "mapped":
        return kind
    if training == recording:
        return f"`{training}`"
    kinds = (("training", training), ("recording", recording))
    return ", ".join(f"{label}: `{field}`" for label, field in kinds if field)
