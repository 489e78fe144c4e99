// Written by scripts/api-types.mjs from openapi.json. Change the API, then run `npm run types`.

/** Makes a model on the node that answers known. */
export type AddModelRequest = {
  /** Name for the model; left out, the file or the folder says. */
  name?: string | null;
  /** Absolute path of a GGUF file or of a folder with `config.json` and safetensors. */
  path: string;
};

/** Lets a node in that asks to join. */
export type AdmitRequest = {
  /** Node id, from the join requests of the cluster view. */
  node: string;
};

/** One alert. */
export type AlertView = {
  /** The device of that node that is affected. */
  device?: string | null;
  /** Names it while it lasts: the rule, and what is affected. */
  id: string;
  /** The instance that is affected. */
  instance?: string | null;
  /** The node that is affected. */
  node?: string | null;
  /** When it was over; `null` while it lasts. Kept for a day. */
  resolved_unix_s?: number | null;
  /** The rule's stable id: `node_lost`. */
  rule: string;
  /** Section of the runbook. */
  runbook: string;
  /** How much the alert matters. */
  severity: Severity;
  /** Until when it is silenced. */
  silenced_until_unix_s?: number | null;
  /** Since when, in seconds since 1970 by the node that answers. */
  since_unix_s: number;
  /** What is affected, to be displayed. */
  subject: string;
  /** What is wrong, with the numbers. */
  text: string;
  /** What a user can do about the alert. */
  what_to_do: string;
};

/** What another plan does otherwise. */
export type AlternativeKind = "alone" | "without" | "with";

/** A plan that was not made. */
export type AlternativePlanView = {
  /** Whether it has all pins and as many devices as were asked for. */
  is_as_asked: boolean;
  /** Whether no plan of its kind is better; else the search for it was cut short. */
  is_proven: boolean;
  /** What the objective counts for it, in milliseconds. */
  objective_ms: number;
  /** How fast it is expected to be. */
  predicted: PredictionView;
  /** Stages of it, first stage first. */
  stages: Array<PlanStageView>;
};

/** The best plan of one kind that was not made, or why there is none. */
export type AlternativeView = {
  /** Name of that device. */
  device: string;
  /** What it does otherwise. */
  kind: AlternativeKind;
  /** Bytes of memory that are missing for it at least, where that is why there is none. */
  missing_bytes?: number | null;
  /** Id of the node of the device that it is about. */
  node: string;
  /** That node's name. */
  node_name: string;
  plan?: AlternativePlanView | null;
  /** Why there is none; `null` where there is one. */
  why?: string | null;
};

/** A call of a tool. */
export type AnsweredCall = {
  /** Name and arguments of the call. */
  function: AnsweredFunction;
  /** To be named by the result. */
  id: string;
  /** Always `function`. */
  type: string;
};

/** A tool's name and arguments. */
export type AnsweredFunction = {
  /** A JSON object as text. */
  arguments: string;
  /** Name of the tool. */
  name: string;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type ApplyTemplateRequest = {
  /** with `messages`: the answer's opening at the end; default true */
  add_generation_prompt?: unknown;
  /** as in `/v1/chat/completions` */
  messages: unknown;
  /** name or id of a model; left out, it is the one that is placed, if there is one */
  model?: unknown;
  /** the same; the prompt is the same for both */
  parallel_tool_calls?: unknown;
  /** the same */
  reasoning_effort?: unknown;
  /** the same; with `none`, too, the template is told of the tools */
  tool_choice?: unknown;
  /** with `messages`, as in `/v1/chat/completions` */
  tools?: unknown;
};

/** What the model says. */
export type AssistantMessage = {
  /** The text; `null` where the answer is calls alone. */
  content?: string | null;
  /** The same under its other name, which some clients look for. */
  reasoning?: string | null;
  /** What the model thought before. An extension. */
  reasoning_content?: string | null;
  /** Always `null`. */
  refusal?: string | null;
  /** Always `assistant`. */
  role: string;
  /** Tools that the model calls. */
  tool_calls?: Array<AnsweredCall>;
};

/** What is new of a block. */
export type BlockDelta = {
  /** The text to append. */
  text: string;
  type: "text_delta";
} | {
  /** Text of the thought to append. */
  thinking: string;
  type: "thinking_delta";
} | {
  /** It proves nothing here. */
  signature: string;
  type: "signature_delta";
} | {
  /** A piece of it. */
  partial_json: string;
  type: "input_json_delta";
};

/** A tool's name and arguments. */
export type CalledFunction = {
  /** A JSON object as text, as it was written: in its order, its numbers as they are spelled. */
  arguments: string;
  /** Name of the tool. */
  name: string;
};

/** A graphics card came, went or got another driver. */
export type CardEventView = {
  /** When, in seconds since 1970 by the node's clock. */
  at_unix_s: number;
  /** What, and what to do about it. */
  text: string;
};

/** One change. A reader passes over kinds that it does not know. */
export type Change = {
  /** Id of the cluster. */
  cluster?: string | null;
  epoch?: EpochView | null;
  /** Whether strangers may join by themselves. */
  join_window: JoinWindowView;
  /** The end of the event log. */
  journal: JournalView;
  kind: "header";
  /** Nodes nearby that have a cluster of their own. */
  other_clusters?: Array<OtherClusterView>;
  /** The node that answers. */
  self_node: string;
  unheard_coordinator?: UnheardCoordinatorView | null;
} | {
  kind: "node";
  /** All facts of the node. */
  node: NodeView;
} | {
  /** Id of the node. */
  id: string;
  kind: "node_gone";
} | {
  /** Gauges of each of its devices. */
  devices: Array<DeviceGauges>;
  kind: "gauges";
  /** Id of the node. */
  node: string;
  /** Resident memory of its process. */
  process_bytes?: number | null;
} | {
  kind: "link";
  /** All facts of the link. */
  link: LinkView;
} | {
  /** The node that measured. */
  from: string;
  kind: "link_gone";
  /** Id of the node at the other end. */
  to: string;
} | {
  /** All facts of the instance. */
  instance: InstanceView;
  kind: "instance";
} | {
  /** Id of the instance. */
  id: string;
  kind: "instance_gone";
} | (InstanceLoad) & ({
  kind: "load";
}) | {
  /** All requests to join. */
  join_requests: Array<JoinRequestView>;
  kind: "join_requests";
} | {
  /** All facts of the alert. */
  alert: AlertView;
  kind: "alert";
} | {
  /** Id of the alert. */
  id: string;
  kind: "alert_gone";
  /** When the alert began, in seconds since 1970: another of the same id may last. */
  since_unix_s: number;
} | {
  kind: "warnings";
  /** The last few warnings. */
  warnings: Array<WarningView>;
};

/** One choice of an answer. */
export type ChatChoice = {
  /** Why the choice ended. */
  finish_reason: FinishReason;
  /** Number of the choice, from 0. */
  index: number;
  logprobs?: ChatLogprobs | null;
  /** Message of the choice. */
  message: AssistantMessage;
};

/** A piece of a streamed answer. */
export type ChatChunk = {
  /** One choice, or none in the usage chunk. */
  choices: Array<ChatChunkChoice>;
  /** Seconds since 1970, the same in all chunks. */
  created: number;
  exo?: ExoSummary | null;
  /** The same in all chunks. */
  id: string;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `chat.completion.chunk`. */
  object: string;
  /** The kernel families, in the usage chunk. */
  system_fingerprint?: string | null;
  usage?: UsageBody | null;
};

/** What is new in one choice. */
export type ChatChunkChoice = {
  /** What is new of the choice. */
  delta: ChatDelta;
  finish_reason?: FinishReason | null;
  /** Number of the choice, from 0. */
  index: number;
  logprobs?: ChatLogprobs | null;
};

/** The whole answer. */
export type ChatCompletion = {
  /** The answers, by index. */
  choices: Array<ChatChoice>;
  /** When the answer was made, in seconds since 1970. */
  created: number;
  /** How it was made. */
  exo: ExoSummary;
  /** `chatcmpl-` and the request's id. */
  id: string;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `chat.completion`. */
  object: string;
  /** The kernel families: equal fingerprints and seeds give equal text. */
  system_fingerprint?: string | null;
  /** Tokens that the request took. */
  usage: UsageBody;
};

/** The new part of a message. */
export type ChatDelta = {
  /** Text to append to the message. */
  content?: string | null;
  /** The same under its other name, which some clients look for. */
  reasoning?: string | null;
  /** Text of the thought to append. An extension. */
  reasoning_content?: string | null;
  /** `assistant`, in the choice's first chunk. */
  role?: string | null;
  /** What is new of calls. */
  tool_calls?: Array<StreamedCall>;
};

/** Probabilities of an answer's tokens. */
export type ChatLogprobs = {
  /** The tokens of the message, each with its log-probability. */
  content: Array<TokenLogprob>;
  /** Always `null`. */
  refusal?: string | null;
};

/** One message of a conversation. Roles are `system`, `user`, `assistant` and `tool`; `developer` arrives as `system`. Its JSON is what chat templates read. */
export type ChatMessage = {
  /** What is said: text parts are joined already. */
  content: string;
  /** The speaker's name, where given; of a tool's result, the tool's. */
  name?: string | null;
  /** What the assistant thought before. */
  reasoning_content?: string | null;
  /** Role of the speaker. */
  role: string;
  /** Of a tool's result: the call that it answers. */
  tool_call_id?: string | null;
  /** What the assistant called. */
  tool_calls?: Array<ToolCall>;
};

/** Asks for the next message of a conversation. Parameters beside these are refused by name unless they ask for nothing. */
export type ChatRequest = (CommonFields) & ({
  /** Extension: `{"regex": …}` or `{"lark": …}`, which the answer is kept to. */
  grammar?: Record<string, unknown> | null;
  /** Report the probability of each token. Default false. */
  logprobs?: boolean | null;
  /** Upper bound of generated tokens per choice, at least 1. Default: what the context leaves. */
  max_completion_tokens?: number | null;
  /** The older name of `max_completion_tokens`; -1 is no bound. */
  max_tokens?: number | null;
  /** The conversation: `role` is system, developer, user or assistant; `content` a string or text parts. */
  messages: Array<ChatMessage>;
  /** Name or id of a model. */
  model: string;
  /** Whether an answer may have several calls. Default true. */
  parallel_tool_calls?: boolean | null;
  /** How much to think: `none`, `minimal`, `low`, `medium`, which asks for nothing, `high`, `xhigh`, `max`. */
  reasoning_effort?: string | null;
  /** What the answer must be: `text`, `json_object`, or `json_schema` with a schema. It is kept to token by token. */
  response_format?: Record<string, unknown> | null;
  /** Extension: most tokens of the model's thinking. Its thought is closed then, and the answer begins. */
  thinking_budget_tokens?: number | null;
  /** `none`, `auto`, `required`, a function or a list of allowed ones. Default `auto`. */
  tool_choice?: unknown;
  /** Functions that the model may call. */
  tools?: Array<Record<string, unknown>> | null;
  /** With `logprobs`: how many of the likeliest tokens to report, 0 to 20. Default 0. */
  top_logprobs?: number | null;
});

/** State of a check. */
export type CheckState = "running" | "matches" | "differs" | "incomplete" | "failed";

/** How a check went. */
export type CheckVerdict = "ok" | "note" | "warning" | "broken";

/** One thing that was looked at. */
export type CheckView = {
  /** What: `memory`. Several checks may be of one kind. */
  check: string;
  /** What the check found. */
  found: string;
  /** What to do about it; empty when there is nothing to do. */
  next: string;
  /** How the check went. */
  verdict: CheckVerdict;
};

/** The cluster as one node sees it. */
export type ClusterView = {
  /** What is wrong in the cluster, and what was within the last day. */
  alerts?: Array<AlertView>;
  /** The cluster's id, or `null` before one is founded or joined. */
  cluster?: string | null;
  epoch?: EpochView | null;
  /** Models that are placed. */
  instances: Array<InstanceView>;
  /** Strangers that ask to join. */
  join_requests: Array<JoinRequestView>;
  /** Whether strangers may join by themselves. */
  join_window: JoinWindowView;
  /** The end of the event log. */
  journal: JournalView;
  /** Measured paths between nodes. */
  links: Array<LinkView>;
  /** Nodes, sorted by name. */
  nodes: Array<NodeView>;
  /** Nodes nearby that have a cluster of their own, the first few: neither side joins the other without a person's word. */
  other_clusters?: Array<OtherClusterView>;
  /** The node that answers. */
  self_node: string;
  unheard_coordinator?: UnheardCoordinatorView | null;
  /** What went wrong on the node that answers and should be known, the last few. */
  warnings?: Array<WarningView>;
};

/** A code that becomes a session, once. It belongs behind `#code=` in the address of the page, where no server and no log sees it. */
export type CodeView = {
  /** Code that lets its bearer in. */
  code: string;
  /** Seconds for which the code is good, and once. */
  expires_in_s: number;
};

/** Parameters of both endpoints. What is left out has the default named here. */
export type CommonFields = (SamplingFields) & ({
  /** Extension, for benchmarks: go on past the end-of-text token. Default false. */
  ignore_eos?: boolean | null;
  /** How many answers, 1 to 16. Default 1. */
  n?: number | null;
  /** A string or up to 16 of them; the text ends before the first that appears. */
  stop?: unknown;
  /** Send the answer in pieces as server-sent events. Default false. */
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
});

/** The whole answer, or a chunk of it. */
export type Completion = {
  /** The answers by index, or what is new in one of them. */
  choices: Array<CompletionChoice>;
  /** When the answer was made, in seconds since 1970. */
  created: number;
  exo?: ExoSummary | null;
  /** `cmpl-` and the request's id. */
  id: string;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `text_completion`. */
  object: string;
  /** The kernel families; in a stream only in the usage chunk. */
  system_fingerprint?: string | null;
  usage?: UsageBody | null;
};

/** One answer, or what is new in it. */
export type CompletionChoice = {
  finish_reason?: FinishReason | null;
  /** Number of the choice, from 0. */
  index: number;
  logprobs?: CompletionLogprobs | null;
  /** The text, after the prompt's with `echo`. */
  text: string;
};

/** Probabilities of an answer's tokens, as parallel lists. */
export type CompletionLogprobs = {
  /** Where each token begins, in characters of the answer. */
  text_offset: Array<number>;
  /** Natural logarithms; null for a prompt's first token. */
  token_logprobs: Array<number | null>;
  /** Texts; a token that is part of a character is written `bytes:\xe2\x82`. */
  tokens: Array<string>;
  /** The likeliest tokens at each place; null in front of a prompt's first token. */
  top_logprobs: Array<Record<string, number> | null>;
};

/** Asks for text to be continued. Parameters beside these are refused by name unless they ask for nothing. */
export type CompletionRequest = (CommonFields) & ({
  /** Begin each answer with the prompt. Default false. */
  echo?: boolean | null;
  /** Report the probability of each token and of so many of the likeliest, 0 to 20; with `echo` of the prompt's too. */
  logprobs?: number | null;
  /** Upper bound of generated tokens per choice; 0 only with `echo`. Default 16. */
  max_tokens?: number | null;
  /** Name or id of a model. */
  model: string;
  /** A string, an array of token ids, or an array of strings or of such arrays. */
  prompt: unknown;
  /** What stands behind the answer; for models with tokens for filling such holes. */
  suffix?: string | null;
});

/** About the generated tokens: those that were guessed ahead (speculative decoding). */
export type CompletionTokensDetails = {
  /** Generated tokens that had been guessed ahead. */
  accepted_prediction_tokens: number;
  /** Of all guesses, the share that was right; absent where there were none. An extension. */
  prediction_acceptance_rate?: number | null;
  /** Generated tokens that belong to thoughts. */
  reasoning_tokens?: number;
  /** Guesses that were computed and were wrong. They are not among the `completion_tokens`. */
  rejected_prediction_tokens: number;
};

/** A part of an answer. */
export type ContentBlock = {
  /** The text of the block. */
  text: string;
  type: "text";
} | {
  /** It proves nothing here, and may come back or not. */
  signature: string;
  /** The thought; empty where it is not shown. */
  thinking: string;
  type: "thinking";
} | {
  /** To be named by the result. */
  id: string;
  /** Its arguments, spelt as the model spelt them. Empty where `max_tokens` cut them. */
  input: Record<string, unknown>;
  /** Name of the tool that is called. */
  name: string;
  type: "tool_use";
};

/** A part of an item. */
export type ContentPart = OutputText | ReasoningText;

/** Factor of a measured rate; see [`Correction`]. */
export type CorrectionView = {
  /** The corrected rate in per cent of the measured one, 50 to 200. */
  percent: number;
  /** Measurements that it is the median of. */
  samples: number;
};

/** What a device's own steps have taught about its rates; see [`Corrections`]. */
export type CorrectionsView = {
  decode?: CorrectionView | null;
  prefill?: CorrectionView | null;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type CountTokensRequest = {
  /** what was read before is found by itself */
  cache_control?: unknown;
  context_management?: unknown;
  /** at most 16,384; the last is not the assistant's */
  messages: unknown;
  /** name or id of a model */
  model: unknown;
  output_config?: unknown;
  /** the older name of `output_config.format` */
  output_format?: unknown;
  /** a string or text blocks */
  system?: unknown;
  /** left out: none where the model can be told so; else it thinks, `usage` counts it, and the answer shows nothing of it */
  thinking?: unknown;
  tool_choice?: unknown;
  /** at most 512; where the model's template has a form for calls that is recognised */
  tools?: unknown;
  user_profile_id?: unknown;
  workspace_id?: unknown;
};

/** What changed since the event before. */
export type DeltaEvent = {
  /** When, in milliseconds since 1970 by the clock of the node that answers. */
  at_unix_ms: number;
  /** The changes, to be applied in their order. */
  changes: Array<Change>;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type DetokenizeRequest = {
  /** name or id of a model; left out, it is the one that is placed, if there is one */
  model?: unknown;
  /** ids, at most 1,048,576; control tokens become their names */
  tokens: unknown;
};

/** The answer of `/detokenize`: the text under both servers' names. */
export type Detokenized = {
  /** As llama.cpp has it. */
  content: string;
  /** As vLLM has it. */
  prompt: string;
};

/** What wavers at one device. */
export type DeviceGauges = {
  /** The device's name within its node. */
  device: string;
  /** What is free of the memory that the device shares with others. */
  memory_domain_free_bytes?: number | null;
  /** Memory that is free for models. */
  memory_free_bytes: number;
  /** What the device's sensors show. */
  sensors: SensorsView;
};

/** Measurements of one device. */
export type DeviceTelemetryView = {
  /** The device's name within the node. */
  device: string;
  /** Temperature at which the device slows itself down, in degrees Celsius. */
  limit_c?: number | null;
  /** What the device's memory holds. */
  memory: MemoryView;
  /** What the device does not tell. */
  missing: Array<MissingView>;
  /** What the device's sensors show. */
  sensors: SensorsView;
  /** Whether it is slowed down for heat or power. */
  throttled?: boolean | null;
};

/** One device of a node; see [`DeviceFacts`]. */
export type DeviceView = {
  /** Backend and instruction set: `cpu/avx2`. */
  backend: string;
  /** Cores or compute units; `null` where nothing tells. */
  compute_units?: number | null;
  /** What its own steps have taught since of all of them. */
  corrections?: CorrectionsView;
  /** Its driver, with the version; `null` where nothing tells, and of a processor. */
  driver?: string | null;
  /** Measured: arithmetic with them for a prompt. */
  flops_per_s?: number | null;
  /** The device's name within the node: `cpu`. */
  id: string;
  /** Kind of the device. */
  kind: string;
  layer_rates?: LayerRatesView | null;
  memory_domain?: MemoryDomainView | null;
  /** Bytes of that memory that are free. */
  memory_free_bytes: number;
  /** Memory it may hold models in. */
  memory_total_bytes: number;
  /** Marketing name of the device. */
  name: string;
  /** The same two with other types of weights than Q8_0, as far as they were measured. */
  rates_by_type?: Array<TypeRatesView>;
  rates_measured?: ProvenanceView | null;
  /** Measured: bytes of Q8_0 weights that a token reads per second. */
  read_bytes_per_s?: number | null;
  /** What the device's sensors show. */
  sensors?: SensorsView;
  /** Whether it takes work now: `usable`, `lost`, `verifying` or `quarantined`. */
  state?: string;
  /** Why the device takes no stages; empty when it does. */
  state_reason?: string;
  /** How far the device can be used. */
  support: string;
  /** Why not fully, or what would make it better; empty when there is nothing to say. */
  support_reason: string;
  /** Types of weights that it cannot run: no layer of a model with any of them goes there. */
  unsupported_types?: Array<string>;
};

/** The checks of every member that was asked. */
export type DoctorView = {
  /** Those that answered, in the order of their names. */
  nodes: Array<NodeChecksView>;
  /** Those that did not. */
  silent: Array<SilentNodeView>;
};

/** How long a node is to have no stages. */
export type Drain = "lasting" | "leaving" | "over";

/** Whether a node is to have stages. */
export type DrainRequest = {
  /** How long the node is to have no stages. */
  drain: Drain;
};

/** The vectors of a request. */
export type EmbeddingList = {
  /** One vector for each input, in order. */
  data: Array<EmbeddingObject>;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `list`. */
  object: string;
  /** Tokens that the request took. */
  usage: UsageBody;
};

/** The vector of one input. */
export type EmbeddingObject = {
  /** It, of length 1. */
  embedding: EmbeddingVector;
  /** Number of the input, from 0. */
  index: number;
  /** Always `embedding`. */
  object: string;
};

/** The elements of a vector. */
export type EmbeddingVector = Array<number> | string;

/** Every field, and what stands in it, is in `docs/api.md`. */
export type EmbeddingsRequest = {
  /** the first so many elements, scaled to length 1: where the model's files say that it was trained for that, or all of them */
  dimensions?: unknown;
  /** `float` or `base64` */
  encoding_format?: unknown;
  /** a string, token ids, or an array of at most 2048 of these; one that is too long is an error with both numbers */
  input: unknown;
  /** name or id of a model */
  model: unknown;
  /** extension: `first`, `mean` or `last`; left out, as the model's files say, or else the node's setting `embedding_pooling`; needed where neither does */
  pooling?: unknown;
  user?: unknown;
};

/** The last event of a stream. */
export type EndEvent = {
  /** Why the stream ends. */
  reason: EndReason;
};

/** Why a stream of events ends. */
export type EndReason = "signed_out" | "stopping" | "slow";

/** A number of requests that ended alike. */
export type EndedView = {
  /** Number of requests that ended so. */
  count: number;
  /** The endpoint: `chat`, `messages`. */
  endpoint: string;
  /** How they ended: `stop`, `cancelled`, `queue_full`. */
  reason: string;
};

/** The epoch of a coordinator. */
export type EpochView = {
  /** The coordinator's node id. */
  coordinator: string;
  /** Grows with each election. */
  counter: number;
};

/** The body of every answer that is not a success, and of an `error` event within a stream. */
export type ErrorBody = {
  /** What went wrong, and its code. */
  error: ErrorDetail;
};

/** What went wrong, and its code. */
export type ErrorDetail = {
  /** Code of the error; stable, for programs. */
  code: string;
  /** For people: what was attempted, with which numbers. */
  message: string;
  /** The parameter to change, where it is one. */
  param?: string | null;
  /** The class: `invalid_request_error`, `authentication_error`, `permission_error`, `server_error`. */
  type: string;
};

/** Kind and content of an event. */
export type EventBody = {
  response: Response;
  type: "response.created";
} | {
  response: Response;
  type: "response.in_progress";
} | {
  response: Response;
  type: "response.completed";
} | {
  response: Response;
  type: "response.incomplete";
} | {
  response: Response;
  type: "response.failed";
} | {
  item: OutputItem;
  output_index: number;
  type: "response.output_item.added";
} | {
  item: OutputItem;
  output_index: number;
  type: "response.output_item.done";
} | {
  content_index: number;
  item_id: string;
  output_index: number;
  part: ContentPart;
  type: "response.content_part.added";
} | {
  content_index: number;
  item_id: string;
  output_index: number;
  part: ContentPart;
  type: "response.content_part.done";
} | {
  content_index: number;
  delta: string;
  item_id: string;
  logprobs: Array<TokenLogprob>;
  output_index: number;
  type: "response.output_text.delta";
} | {
  content_index: number;
  item_id: string;
  logprobs: Array<TokenLogprob>;
  output_index: number;
  text: string;
  type: "response.output_text.done";
} | {
  content_index: number;
  delta: string;
  item_id: string;
  output_index: number;
  type: "response.reasoning_text.delta";
} | {
  content_index: number;
  item_id: string;
  output_index: number;
  text: string;
  type: "response.reasoning_text.done";
} | {
  delta: string;
  item_id: string;
  output_index: number;
  type: "response.function_call_arguments.delta";
} | {
  arguments: string;
  item_id: string;
  name: string;
  output_index: number;
  type: "response.function_call_arguments.done";
};

/** Extension `exo`: how the answer was made. Beside the usage, in the whole answer and at the end of a stream. */
export type ExoSummary = {
  /** Of the tokens guessed ahead, the share that was right; absent where none were. */
  draft_acceptance_rate?: number | null;
  /** Kernel families, first stage first. */
  kernels: Array<string>;
  /** Messages of the oldest turns that were left out, where that was asked for and the conversation was too long. */
  left_out_messages?: number | null;
  /** Kinds of tools that run at their vendor and were left out, as this node's settings have it. */
  left_out_tools?: Array<string>;
  /** Id of the model that answered. */
  model_id: string;
  /** The request's id, as in the logs. */
  request: string;
  /** Where the answer was interrupted and went on; absent where it was not. */
  resumed?: Array<Resumed>;
  /** Stages of the pipeline. */
  stages: number;
  times?: StepTimesView | null;
  /** How long each part of the request took. */
  timings: Timings;
  /** Places of the schemas of tools that are not `strict` which are not enforced, and why. */
  unenforced?: Array<string>;
};

/** What speaks for a plan that was not taken, and what against it. */
export type FasterPlanView = {
  /** Bytes of the file that nodes without it would fetch first, at least. */
  fetch_bytes: number;
  /** Milliseconds that fetching takes at least. */
  fetch_ms: number;
  /** Whether a link that it goes over is not measured yet: then that time is a guess. */
  is_fetch_estimated?: boolean;
  /** Milliseconds that the objective counts for this plan. */
  objective_ms: number;
};

/** What one source gave of what is fetched. */
export type FetchSourceView = {
  /** Bytes that came from it since this fetch began. */
  bytes: number;
  /** Bytes per second on average since then. */
  bytes_per_s: number;
  /** Name of the member; absent for the model's hub. */
  member?: string | null;
};

/** A number and where it comes from. */
export type FigureView = {
  /** Seconds since the last of them. */
  age_s?: number | null;
  /** Measurements that the value stands for; `null` where it is not measured. */
  samples?: number | null;
  /** `measured`, `measured long ago`, `stated`, `derived` or `estimated`. */
  source: string;
  /** Value that the plan counted with. */
  value: number;
};

/** How a file differs between two commits. */
export type FileChangeKind = "added" | "changed" | "removed";

/** A file that differs between two commits. */
export type FileChangeView = {
  /** How the file differs. */
  kind: FileChangeKind;
  /** The file's path in the repository. */
  path: string;
  /** The file's length in bytes, now, or before if it is gone. */
  size: number;
};

/** Why a choice ended. */
export type FinishReason = "stop" | "length" | "tool_calls";

/** The best of a model that fits. */
export type FitPlanView = {
  /** Longest context that fits, in tokens, up to what the model was made for. */
  context_tokens_max: number;
  /** Bytes to fetch: 0 for a model that the cluster has. */
  download_bytes: number;
  /** How fast the model is expected to be. */
  predicted: PredictionView;
  /** Type of the weights. */
  quantisation: string;
  /** What each device would hold, first stage first. */
  stages: Array<PlanStageView>;
};

/** A type of weights. */
export type FitSizeView = {
  /** Bytes of the weights. */
  bytes: number;
  /** Name of the smaller quantisation. */
  quantisation: string;
  /** Tokens per second of one answer, if it fits. */
  tokens_per_s?: number | null;
};

/** Whether a model fits. */
export type FitVerdict = "comfortable" | "slow" | "too_large" | "context_too_long" | "not_supported";

/** One model, and whether it fits. */
export type FitView = {
  best?: FitPlanView | null;
  /** Changes each of which alone would make the smallest type fit, the smallest change first. */
  changes: Array<string>;
  /** Longest context that it was made for, in tokens. */
  context_tokens_max: number;
  /** What the model is good for. */
  good_for: string;
  /** The licence; empty for a model that is known, whose own entry has it. */
  licence: string;
  /** The model's name in the catalogue, or the reference. */
  name: string;
  /** Numbers that it has learnt. */
  parameters: number;
  /** The reference that `exo pull` and `exo run` take. */
  reference: string;
  /** Every type that was looked at, largest first. */
  sizes: Array<FitSizeView>;
  /** The verdict in a sentence. */
  summary: string;
  /** Terms of the licence that are worth knowing before. */
  terms?: string | null;
  /** The model's name, to be displayed. */
  title: string;
  /** Whether the model fits. */
  verdict: FitVerdict;
};

/** Asks which models fit. */
export type FitsQuery = {
  /** Context to plan for, in tokens; the node's usual one if left out. */
  context_tokens?: number | null;
  /** Another hub than the node's: the address of a mirror. */
  endpoint?: string | null;
  /** Only this one: a name of the catalogue, name or id of a model that is known, or `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`. */
  reference?: string | null;
  token?: HubToken | null;
};

/** Models and whether they fit, best first. */
export type FitsView = {
  /** Context that was planned for, in tokens. */
  context_tokens: number;
  /** Machines that were planned on. */
  machines: number;
  /** Memory that they have free for models. */
  memory_free_bytes: number;
  /** The models, best fit first. */
  models: Array<FitView>;
};

/** A model of another program on a node's disk. */
export type FoundModelView = {
  /** Bytes of the model's files. */
  bytes: number;
  /** The model's name in that program. */
  name: string;
  /** Path of the model on the disk. */
  path: string;
  /** Why exo cannot use the model; `null` if it can. */
  problem?: string | null;
  /** Name of the program that stores the model. */
  program: string;
  /** SHA-256 of the model, where that program keeps it. */
  sha256?: string | null;
};

/** A repository that a search found. */
export type FoundRepoView = {
  /** Downloads in the last month. */
  downloads: number;
  /** `gguf` or `safetensors`, where its tags say so. */
  format?: string | null;
  /** Whether the hub asks for consent first. */
  gated: boolean;
  /** Likes that the hub counts. */
  likes: number;
  /** The repository, `ORG/REPO`. */
  repo: string;
};

/** State of the node. */
export type HealthStatus = "ok" | "stopping";

/** Answer of `/health`. Open to anyone who reaches the port, so it names nothing private. */
export type HealthView = {
  /** State of the node. */
  status: HealthStatus;
  /** Seconds since the start. */
  uptime_s: number;
  /** Version of exo on the node. */
  version: string;
};

/** Counts by size. `counts` has one number for each bound and one for what is above the last; it is empty where nothing was counted. */
export type HistogramView = {
  /** How many values fell between one bound and the next. */
  counts: Array<number>;
  /** Sum of all, in seconds. */
  sum_s: number;
};

/** Gives the node a token for its hub. */
export type HubLoginRequest = {
  /** For gated and private repositories. It is kept in the node's data folder, for the node's hub alone, and never shown. */
  token: HubToken;
};

/** Looks for models on the hub. */
export type HubSearchRequest = {
  /** Text to search for. */
  text: string;
};

/** Asks what a repository has. */
export type HubShowRequest = {
  /** The repository: `hf.co/ORG/REPO[@REVISION]`. */
  reference: string;
};

/** A token for a hub. It is never printed. */
export type HubToken = string;

/** Why an answer is incomplete. */
export type IncompleteDetails = {
  /** `max_output_tokens`: that, or the context, was reached. */
  reason: string;
};

/** How many tokens the prompt of a response has. */
export type InputTokenCount = {
  /** All of them: of the instructions, the tools and the conversation, as the model's template prints them. */
  input_tokens: number;
  /** Always `response.input_tokens`. */
  object: string;
};

/** What wavers at one instance. */
export type InstanceLoad = {
  /** Id of the instance. */
  id: string;
  load?: LoadView | null;
  measured_alone?: MeasuredAnswerView | null;
  /** Tokens per second that the last steps reached. */
  measured_tokens_per_s?: number | null;
  predicted?: PredictionView | null;
  /** Tokens per second that the model of cost expects of one stream. */
  predicted_tokens_per_s?: number | null;
  /** What each stage took of the tokens of the last answer that ran alone. */
  stages_measured?: Array<StageMeasuredView | null>;
  /** Share of a token's time at each stage. */
  time_shares: Array<number | null>;
};

/** State of an instance. */
export type InstanceState = {
  kind: "placing";
} | {
  kind: "loading";
  /** Share of all bytes that are in place, 0 to 1. */
  progress: number;
} | {
  kind: "ready";
} | {
  kind: "degraded";
  /** What is wrong with the instance. */
  reason: string;
} | {
  kind: "waiting";
  /** What the instance lacks. */
  reason: string;
} | {
  kind: "failed";
  /** What went wrong. */
  reason: string;
};

/** Measurements of one instance, by the node of its first stage. */
export type InstanceTelemetryView = {
  /** Id of the instance. */
  instance: string;
  /** Requests at it, and how it keeps up with them. */
  load: LoadView;
  /** Name of the model. */
  model: string;
  /** Steps of its pipeline since it was placed. */
  steps: number;
};

/** A model that is placed. */
export type InstanceView = {
  /** What a better plan gains, found when machines had come or gone: `replan` carries it out. */
  advice?: string | null;
  /** Tokens whose keys and values it has room for, over all sequences. */
  cache_tokens?: number;
  /** Longest sequence, prompt and answer. */
  context_tokens: number;
  /** Nodes, or `NODE/DEVICE`, that must not. */
  exclude?: Array<string>;
  /** Instance id, like `i1a`. */
  id: string;
  /** It serves, and no machine that is there has the model's file any more, as it was when it was placed: what is unloaded, or lost, could not be loaded again. */
  is_file_gone?: boolean;
  /** A request had it placed: it is unloaded when none has used it for long, or for another model. */
  is_on_demand?: boolean;
  /** How keys and values are stored. */
  kv: KvType;
  load?: LoadView | null;
  measured_alone?: MeasuredAnswerView | null;
  /** Tokens per second that the last steps reached, over all streams. */
  measured_tokens_per_s?: number | null;
  /** Name of the model. */
  model: string;
  /** Id of the model. */
  model_id: string;
  moving?: MovingView | null;
  /** What the instance was placed for. */
  objective?: PlanObjective;
  /** Devices that must take part, as `NODE/DEVICE`, and after `=` their layers. */
  pins?: Array<string>;
  /** Which placement of it this is: another each time it is placed anew. */
  placement: string;
  predicted?: PredictionView | null;
  /** What the model of cost expects of one stream on these stages, as its devices and links are measured now. */
  predicted_tokens_per_s?: number | null;
  /** Why each device got its part, in the answer to the request that placed it; empty elsewhere. */
  reasons?: Array<string>;
  /** Sequences that may run at once. */
  slots: number;
  /** Stages of the instance, first stage first. */
  stages: Array<StageView>;
  /** State of the instance. */
  state: InstanceState;
  /** Since when it is in that state, in seconds since 1970, as the node that answers has seen it. */
  state_since_unix_s?: number;
  /** Streams that `throughput` was computed for. */
  streams?: number | null;
};

/** What code is given out. Without any field: nine digits for one node, for five minutes. */
export type InviteRequest = {
  /** A token for so long. */
  hours?: number | null;
  /** A token for so many nodes. */
  uses?: number | null;
};

/** A code that lets a node in. */
export type InviteView = {
  /** Where that is reached from networks that it is on. */
  addresses: Array<string>;
  /** Nine digits or a token: whoever knows it gets in. */
  code: string;
  /** When the code becomes void, in seconds since 1970. */
  expires_at_unix_s: number;
  /** The node that gave it out. */
  node: string;
  /** Nodes it lets in. */
  uses: number;
};

/** Joins where a code was given out. */
export type JoinRequest = {
  /** Where that is, `host:port` with an IP address; none to ask all nodes nearby. */
  addresses?: Array<string>;
  /** The code that `exo invite` shows. */
  code: string;
  /** The node that gave it out, if it is known. */
  node?: string | null;
};

/** A stranger that asks to join. */
export type JoinRequestView = {
  /** Address that the request comes from. */
  address: string;
  /** The four words that both sides show. */
  check_words: string;
  /** Name that the node gives itself. Not to be trusted. */
  name: string;
  /** Id of the node that asks. */
  node: string;
};

/** For how long the door is to be open. */
export type JoinWindowRequest = {
  /** 1 to 60; 10 if left out. */
  minutes?: number | null;
};

/** Whether strangers may join by themselves. */
export type JoinWindowView = {
  /** Whether it is open. */
  open: boolean;
  /** Until when, seconds since 1970. */
  open_until_unix_s?: number | null;
};

/** The cluster that this node is a member of now. */
export type JoinedView = {
  /** The words that both show. */
  check_words: string;
  /** Name of the node that let this one in. */
  name: string;
};

/** The end of the event log. */
export type JournalView = {
  /** Number of entries in the log. */
  entries: number;
  /** Hash of the last one, hexadecimal; empty for an empty log. */
  head: string;
  /** Members, the one that answers among them, that are known to have the same log on their disks. */
  holders?: number;
};

/** Says whether a model stays on a node's disk, however full that is. */
export type KeepModelRequest = {
  /** False lets it go again when room is needed. */
  kept: boolean;
  /** The model's name or id. */
  model: string;
};

/** A rate for each type of keys and values; see [`KvRates`]. */
export type KvRatesView = {
  /** With 16-bit floats. */
  f16: number;
  /** With 32-bit floats. */
  f32: number;
  /** With 8-bit integers. */
  q8: number;
};

/** How keys and values are stored: exact, in half the memory, or in a little over a quarter. */
export type KvType = "f32" | "f16" | "q8";

/** Measured rates of a device for the rest of a layer; see [`LayerRates`]. */
export type LayerRatesView = {
  /** Activations of a prompt that norms, rotations, the KV write, the activation function and sums pass, per second. */
  activations_per_s: number;
  /** Operations of a prompt's attention per second. */
  attention_flops_per_s: number;
  kv_read_bytes_per_s?: KvRatesView | null;
  /** Seconds that all these take in a layer for one token. */
  layer_s: number;
  /** Bytes of weights per second that a prompt waits for, beside computing with them. */
  prefill_read_bytes_per_s: number;
  /** Bytes of Q8_0 weights per second that a step of 16 tokens of as many streams reads and computes with; `null` where it was not measured. */
  read_16_rows_bytes_per_s?: number | null;
};

/** A half-open range of layers. */
export type LayersView = {
  /** First layer not held. */
  end: number;
  /** Index of the first layer held. */
  start: number;
};

/** Measurements of one link, by the node at its end. */
export type LinkTelemetryView = {
  /** Whether it runs over a radio of the node, as far as the node's system tells (Linux). */
  is_wireless?: boolean | null;
  /** Mean difference between one round trip and the next. */
  jitter_ms: number;
  /** Of these, packets lost on the way. TCP is in neither: the system repairs its losses unseen. */
  lost_packets?: number | null;
  /** Id of the node at the other end. */
  peer: string;
  /** The other end's name. */
  peer_name: string;
  /** Bytes of frames received in all. */
  received_bytes?: number | null;
  /** Bytes per second that came from the other end, as last measured. */
  received_bytes_per_s?: number | null;
  /** Round trip, median of the last measurements. */
  rtt_ms: number;
  /** Bytes of frames sent to it since the process began; `null` where that is not counted. */
  sent_bytes?: number | null;
  /** Packets sent to it over QUIC since the process began; `null` where there was no such connection. */
  sent_packets?: number | null;
};

/** A measured path between two nodes. */
export type LinkView = {
  /** Seconds since the last measurement of bandwidth. */
  bandwidth_age_s?: number | null;
  /** Number of measurements of bandwidth so far. */
  bandwidth_samples?: number;
  /** How fast bytes go from `from` to `to`, as `to` has received them: the last good measurement. */
  bytes_per_s?: number | null;
  /** The node that measured. */
  from: string;
  /** Mean difference between one round trip and the next. */
  jitter_ms?: number | null;
  loss?: LossView | null;
  /** Seconds since the last of them was measured. */
  rtt_age_s?: number | null;
  /** Round trip, median of the last measurements. */
  rtt_ms?: number | null;
  /** Number of round trips that this is the median of. */
  rtt_samples?: number;
  /** Id of the node at the other end. */
  to: string;
  /** Transport of the link: `tcp`, `quic`. */
  transport: string;
};

/** The data of an event, told apart by the name of the event (`snapshot`, `delta`, `end`). */
export type LiveEvent = SnapshotEvent | DeltaEvent | EndEvent;

/** Requests at an instance. A sequence is one choice of a request. */
export type LoadView = {
  /** Prompt tokens that were found in kept pages. */
  cached_tokens: number;
  /** Tokens guessed ahead and checked, of all sequences since it was loaded. */
  drafts?: number;
  /** Drafted tokens that were right. */
  drafts_accepted?: number;
  /** Pages of the key-value cache. */
  pages: number;
  /** Pages kept for prompts to come; free when needed. */
  pages_cached: number;
  /** Pages that running sequences use. */
  pages_used: number;
  /** Prompt tokens of all sequences since it was loaded. */
  prompt_tokens: number;
  /** Prompt tokens read per second, as last measured. */
  prompt_tokens_per_s?: number | null;
  /** Sequences that run. */
  running: number;
  /** Tokens generated per second over all sequences while no prompt is read, as last measured. */
  tokens_per_s?: number | null;
  /** Sequences that wait for a slot. */
  waiting: number;
  /** Sequences that may wait; one more is refused with 429. */
  waiting_max: number;
};

/** How much a line matters. */
export type LogLevel = "trace" | "debug" | "info" | "warn" | "error";

/** Has more of one target kept for ten minutes. */
export type LogLevelRequest = {
  /** What is kept of it from then on. */
  level: LogLevel;
  /** The target, or the beginning of several: `exo_cluster::scheduler`. */
  target: string;
};

/** A line of a node's log. Never a prompt or an answer. */
export type LogLineView = {
  /** When, in milliseconds since 1970 by the node's clock. */
  at_unix_ms: number;
  /** How much the line matters. */
  level: LogLevel;
  /** Name of the node that wrote the line. */
  name: string;
  /** Id of the node that wrote the line. */
  node: string;
  /** Number of the line on that node, growing. */
  number: number;
  /** The request that it is about, where it names one. */
  request?: string | null;
  /** Part of the program that wrote the line. */
  target: string;
  /** Text of the line. */
  text: string;
};

/** Log lines of one or more nodes. */
export type LogsView = {
  /** The lines in the order of their times, by each node's own clock. */
  lines: Array<LogLineView>;
  /** Value of `after` that asks for what follows. */
  next: string;
  /** Nodes that did not answer. */
  silent: Array<SilentNodeView>;
};

/** Packets that were lost on the way. */
export type LossView = {
  /** Number of packets sent that this is a part of. */
  packets: number;
  /** Part of the packets sent, from 0 to 1. */
  share: number;
  /** Seconds until now in which they were sent, about 60 at most. */
  window_s: number;
};

/** What an answer took, beside what the model of cost expects of the same prompt and answer as devices and links are measured now. Counted where the first stage is, so without the way to another node's client. */
export type MeasuredAnswerView = {
  /** Tokens behind the first that came one a step, without guesses. */
  answer_tokens: number;
  /** Time from its first step to its first token. */
  first_token: MeasuredTimeView;
  /** Tokens of its prompt, none of which was kept from earlier requests. */
  prompt_tokens: number;
  token?: MeasuredTimeView | null;
};

/** A time as it came and as it was expected, in milliseconds. */
export type MeasuredTimeView = {
  /** Milliseconds as measured. */
  measured_ms: number;
  off?: TermOffView | null;
  /** Milliseconds as predicted. */
  predicted_ms: number;
};

/** What a member may do. */
export type MemberRole = "admin" | "worker";

/** A member, there or not. */
export type MemberView = {
  /** The four words shown when it joined, where known. */
  check_words?: string | null;
  /** Whether it is the node that answers. */
  is_self: boolean;
  /** Name of the member when it joined. */
  name: string;
  /** Id of the member. */
  node: string;
  /** What the member may do. */
  role: MemberRole;
};

/** Memory that several devices share; see [`MemoryDomain`]. */
export type MemoryDomainView = {
  /** Free bytes of it, whatever a device of it is limited to. */
  free_bytes: number;
  /** Id of the memory, the same for all devices of the cluster that share it. */
  id: string;
};

/** What a device's memory holds. */
export type MemoryView = {
  /** Bytes of the total that are free. */
  free_bytes: number;
  /** Bytes of keys and values. */
  kv_bytes: number;
  /** The rest: other programs, the system. */
  others_bytes: number;
  /** Bytes that models may take in all. */
  total_bytes: number;
  /** Bytes of the shards' weights. */
  weights_bytes: number;
  /** Bytes of what else shards hold: rows, buffers. */
  workspace_bytes: number;
};

/** What the model says. */
export type Message = {
  /** Thoughts, text and calls, in their order. */
  content: Array<ContentBlock>;
  exo?: ExoSummary | null;
  /** `msg_` and the request's id. */
  id: string;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `assistant`. */
  role: string;
  stop_reason?: StopReason | null;
  /** The stop sequence that ended it. */
  stop_sequence?: string | null;
  /** Always `message`. */
  type: string;
  /** Tokens that the request took. */
  usage: MessageUsage;
};

/** Why an answer ended. */
export type MessageEnd = {
  stop_reason?: StopReason | null;
  /** The stop sequence that ended it. */
  stop_sequence?: string | null;
};

/** One event of a streamed answer. */
export type MessageEvent = {
  /** The answer's head, with no content yet. */
  message: Message;
  type: "message_start";
} | {
  /** The block, empty so far. */
  content_block: ContentBlock;
  /** Index of the block, from 0. */
  index: number;
  type: "content_block_start";
} | {
  /** What is new of the block. */
  delta: BlockDelta;
  /** Index of the block, from 0. */
  index: number;
  type: "content_block_delta";
} | {
  /** Index of the block, from 0. */
  index: number;
  type: "content_block_stop";
} | {
  /** Why the answer ended. */
  delta: MessageEnd;
  /** Extension: how it was made. */
  exo: ExoSummary;
  type: "message_delta";
  /** Tokens taken, in all. */
  usage: MessageUsage;
} | {
  type: "message_stop";
} | {
  type: "ping";
};

/** Tokens a request took. */
export type MessageUsage = {
  /** Always 0: what is read is kept by itself. */
  cache_creation_input_tokens: number;
  /** Tokens of the prompt that were there already. */
  cache_read_input_tokens: number;
  /** Tokens of the prompt that were computed. */
  input_tokens: number;
  /** Tokens generated for the answer. */
  output_tokens: number;
  /** About the generated tokens. */
  output_tokens_details: OutputTokensDetails;
};

/** The body of an answer that is not a success, and of an `error` event within a stream. */
export type MessagesError = {
  /** The error, with its kind and message. */
  error: MessagesErrorDetail;
  /** As in the header `request-id` and in the logs. */
  request_id: string;
  /** Always `error`. */
  type: string;
};

/** What the vendor's packages look for before they go on in another way by themselves. */
export type MessagesErrorCause = {
  /** Always `thread_unsupported_request`: the whole conversation is to be sent, without `thread`. */
  error_code: string;
};

/** Kind and message of an error. */
export type MessagesErrorDetail = {
  /** Extension: stable, for programs, the same as in every dialect. */
  code: string;
  details?: MessagesErrorCause | null;
  /** What was attempted, with which numbers. */
  message: string;
  /** The class: `invalid_request_error`, `not_found_error`, `overloaded_error`, … */
  type: string;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type MessagesRequest = {
  /** what was read before is found by itself */
  cache_control?: unknown;
  context_management?: unknown;
  /** what was read before is counted in `usage` */
  diagnostics?: unknown;
  /** extension; -2 to 2 */
  frequency_penalty?: unknown;
  /** extension; token ids of the vocabulary to -100 to 100, at most 1024 */
  logit_bias?: unknown;
  /** must be there, at least 1; the context bounds it anyway */
  max_tokens: unknown;
  /** at most 16,384; the last is not the assistant's */
  messages: unknown;
  metadata?: unknown;
  /** extension; 0 to 1 */
  min_p?: unknown;
  /** name or id of a model */
  model: unknown;
  output_config?: unknown;
  /** the older name of `output_config.format` */
  output_format?: unknown;
  /** extension; -2 to 2 */
  presence_penalty?: unknown;
  /** extension; 0.01 to 10 */
  repetition_penalty?: unknown;
  /** extension: the penalties count so many tokens before the next, prompt included; 0, the default, is all */
  repetition_penalty_window?: unknown;
  /** extension; the same seed, prompt and parameters give the same text */
  seed?: unknown;
  /** up to 16 */
  stop_sequences?: unknown;
  stream?: unknown;
  /** a string or text blocks */
  system?: unknown;
  /** 0 to 2, default 1; 0 is greedy */
  temperature?: unknown;
  /** left out: none where the model can be told so; else it thinks, `usage` counts it, and the answer shows nothing of it */
  thinking?: unknown;
  tool_choice?: unknown;
  /** at most 512; where the model's template has a form for calls that is recognised */
  tools?: unknown;
  /** 0 and -1 keep all */
  top_k?: unknown;
  /** 0 to 1 */
  top_p?: unknown;
  /** extension; 0 to 1 */
  typical_p?: unknown;
  user_profile_id?: unknown;
  workspace_id?: unknown;
};

/** A source that tells nothing. */
export type MissingView = {
  /** Why it is missing. */
  reason: string;
  /** What is missing: `temperature_c`. */
  what: string;
};

/** Has a model of a hub compared with the digests that the hub named, over the nodes that have its layers. */
export type ModelCheckRequest = {
  /** The model's name or id. */
  model: string;
};

/** A check of a model. */
export type ModelCheckView = {
  /** Bytes that were compared. */
  bytes: number;
  /** Id of the model that is checked: several may have one name. */
  id: string;
  /** Which file differs, from where bytes are missing, or why it broke off. */
  message?: string | null;
  /** Name of the model that is checked. */
  model: string;
  /** Other nodes that had some of them. */
  nodes: Array<string>;
  /** State of the check. */
  state: CheckState;
};

/** One model. */
export type ModelInfo = {
  /** When the model became known. */
  created_at: string;
  /** The model's name, the same as `id`. */
  display_name: string;
  /** What to send as `model`. */
  id: string;
  /** Always `active`. */
  lifecycle: string;
  /** Tokens of the longest context that a request has now. */
  max_input_tokens: number;
  /** The same: prompt and answer share it. */
  max_tokens: number;
  /** Always `model`. */
  type: string;
};

/** The models that can be asked for. */
export type ModelList = {
  /** The models, by name. */
  data: Array<ModelObject>;
  /** Always `list`. */
  object: string;
};

/** One model of the list. */
export type ModelObject = {
  /** Extension: tokens of the longest context that a request has now, prompt and answer. */
  context_length: number;
  /** When it became known, seconds since 1970. */
  created: number;
  /** What to send as `model`. */
  id: string;
  /** Always `model`. */
  object: string;
  /** Always `exo`. */
  owned_by: string;
};

/** A page of the models that can be asked for. */
export type ModelPage = {
  /** The models, by name. */
  data: Array<ModelInfo>;
  /** The first of the page. */
  first_id?: string | null;
  /** Whether there are more in the direction that was asked for. */
  has_more: boolean;
  /** The last of the page. */
  last_id?: string | null;
};

/** Requests for one model at one node. */
export type ModelRequestsView = {
  /** Prompt tokens whose keys and values were kept from before. */
  cached_tokens: number;
  /** Tokens of all answers. */
  completion_tokens: number;
  /** Seconds from arrival to the end. */
  duration: HistogramView;
  /** How many requests ended, by endpoint and reason. */
  ended: Array<EndedView>;
  /** Seconds from arrival to the first token. */
  first_token: HistogramView;
  /** The model's name; empty where the request named none that is known. */
  model: string;
  /** From the first prompt token at work to the first token of the answer. */
  prefill: HistogramView;
  /** Tokens of all prompts. */
  prompt_tokens: number;
  /** Seconds from arrival to the first prompt token at work. */
  queue: HistogramView;
  /** Time per token behind the first. */
  token: HistogramView;
};

/** Whether a model can be given tools: its chat template says so, by the calls that it prints. */
export type ModelTools = {
  /** Form of the model's calls: `JSON behind <tool_call>`. */
  format?: string | null;
  /** Why the model cannot be given tools; `null` if it can. */
  reason?: string | null;
  /** Whether requests may have tools. */
  usable: boolean;
};

/** A model that can be asked for. */
export type ModelView = {
  /** When its file was last changed on the node that answers, in seconds since 1970; 0 where that is not known. */
  added_unix_s?: number;
  /** Architecture of the model: `llama`, `qwen3`. */
  architecture: string;
  /** Whether it has a chat template. */
  chat: boolean;
  /** Longest context, prompt and answer, that a request has now: of its placement, or of the one that a request would bring about; 0 where that is not known. */
  context_tokens?: number;
  /** Longest context it was made for. */
  context_tokens_max: number;
  /** Stored bytes by element type: `{"Q4_K": 1000, "F32": 10}`. */
  dtypes?: Record<string, number>;
  /** Format of the files: `gguf` or `safetensors`. */
  format: string;
  /** The root hash of its manifest. */
  id: string;
  /** The instances of it there are. */
  instances?: Array<string>;
  /** Whether the node that answers keeps it on its disk, however full that is. */
  kept?: boolean;
  /** Number of transformer layers. */
  layers: number;
  /** The licence that its repository names. */
  licence?: string | null;
  /** Name that requests use for the model. */
  name: string;
  /** Another model of this name is the one that the name means: requests for this one say its id. */
  needs_id?: boolean;
  /** Names of the nodes that have it. */
  nodes: Array<string>;
  /** Elements of all its tensors; 0 where they are not known. */
  parameters?: number;
  /** Where it lies on the node that answers; `null` when only others have it. */
  path?: string | null;
  /** Repository, quantisation and commit, if the node that answers fetched it from a hub. */
  source?: string | null;
  tools?: ModelTools | null;
  /** When it is unloaded unless a request comes, in seconds since 1970, as far as the node that answers knows of requests; `null` where it is not loaded, or stays until somebody unloads it. */
  unloads_unix_s?: number | null;
  /** When it was last in use on the node that answers, in seconds since 1970; `null` if never, or where only others have it. */
  used_unix_s?: number | null;
  /** Stored bytes of all weights. */
  weight_bytes: number;
};

/** Stages that serve are to be elsewhere. */
export type MovingView = {
  kind: "loading";
  /** Share of all bytes that are in place there, 0 to 1. */
  progress: number;
  /** Why the stages move. */
  reason: string;
} | {
  kind: "stays";
  /** Why nothing else takes them. */
  reason: string;
};

/** The checks of one machine. */
export type NodeChecksView = {
  /** What the node itself has checked. */
  checks: Array<CheckView>;
  /** Name of the node that was looked over. */
  name: string;
  /** Id of the node that was looked over. */
  node: string;
};

/** A download, as the node that carries it out tells all others. */
export type NodePullView = {
  /** Bytes a second over the last seconds; `null` while nothing comes. */
  bytes_per_s?: number | null;
  /** What was asked for; of an address without what stands behind `?` and in front of `@`. */
  reference: string;
  /** What came from where, most first, while it is fetched; absent where there is one source. */
  sources?: Array<FetchSourceView>;
  /** Where it is. */
  state: PullState;
  /** Bytes in all; `null` until the hub has said. */
  total_bytes?: number | null;
  /** Bytes that are on the node's disk and verified. */
  verified_bytes: number;
};

/** Whether a node is there. */
export type NodeStatus = "alive" | "suspected" | "lost" | "left";

/** Measurements of one node. */
export type NodeTelemetryView = {
  /** Seconds since its last data came; `null` if none has come. */
  age_s?: number | null;
  /** Charge of its battery, 0 to 1. */
  battery?: number | null;
  /** By how many seconds its clock is ahead of that of the node that answers. */
  clock_ahead_s?: number | null;
  /** How many its process may have. */
  descriptors_max?: number | null;
  /** Open file descriptors of its process; `null` where its system does not tell. */
  descriptors_open?: number | null;
  /** Measurements of its devices. */
  devices: Array<DeviceTelemetryView>;
  /** Free on the disk of its data folder. */
  disk_free_bytes?: number | null;
  /** Of that, what models may still take by its settings `disk_reserve_mib` and `disk_quota_mib`. */
  disk_room_bytes?: number | null;
  /** Instances whose first stage it holds. */
  instances: Array<InstanceTelemetryView>;
  /** Measurements of its links. */
  links: Array<LinkTelemetryView>;
  /** Whether it runs on mains power. */
  mains_power?: boolean | null;
  /** Bytes of its memory that are free or can be freed. */
  memory_available_bytes?: number | null;
  /** Memory of the machine, as far as the process may use it. */
  memory_total_bytes?: number | null;
  /** Whether multicast that it sends comes back to it; `null` where it looks for no other nodes, or is on no network where that can be tried. */
  multicast_heard?: boolean | null;
  /** Name of the node. */
  name: string;
  /** Id of the node. */
  node: string;
  /** Operating system and architecture; empty when not known. */
  platform: string;
  /** Resident memory of its process. */
  process_bytes?: number | null;
  /** Its downloads that are not done, the oldest first, eight at most. */
  pulls?: Array<NodePullView>;
  /** Requests of its clients since its process began, by model. */
  requests: Array<ModelRequestsView>;
  /** Shards that it holds. */
  stages: Array<StageTelemetryView>;
  /** Whether it is there. */
  status: NodeStatus;
  /** Bytes of model files fetched since its process began. */
  transferred_bytes: number;
  /** Fetches of model files that run. */
  transfers: number;
  /** Members to which it has no link for data, and has had none for a moment. */
  unreached: Array<string>;
  /** Seconds since its process began. */
  uptime_s?: number | null;
  /** Program version; empty when not known. */
  version: string;
};

/** One node of the cluster. */
export type NodeView = {
  /** Addresses at which the node is reached, `ip:port`. */
  addresses: Array<string>;
  /** Graphics cards that came, went or got another driver since it was started, the last few, oldest first. */
  card_events?: Array<CardEventView>;
  /** Devices of the node. */
  devices: Array<DeviceView>;
  /** Since when it is gone, in seconds since 1970, as the node that answers has seen it; absent while it is there, and where it was gone before that node was started. */
  gone_since_unix_s?: number | null;
  /** It is an admin whose key signed two changes of the members of which neither follows the other: the key is in two places, or it lies. */
  has_forked?: boolean;
  /** Id of the node. */
  id: string;
  /** Its disk has not answered a write for ten seconds: it computes what it has, and nothing more is placed on it until it writes again. */
  is_disk_hung?: boolean;
  /** It is to have no stages (`exo drain`), or is about to end. */
  is_drained?: boolean;
  /** Whether it is the node that answers. */
  is_self: boolean;
  /** Whether it runs on mains power. */
  mains_power?: boolean | null;
  /** Name of the node, to be displayed. */
  name: string;
  /** Operating system and architecture; empty when not known yet. */
  platform: string;
  /** Resident memory of its process. */
  process_bytes?: number | null;
  /** What the member may do. */
  role: MemberRole;
  /** Whether the node is there. */
  status: NodeStatus;
  /** Program version; empty when not known yet. */
  version: string;
};

/** The whole answer, or a line of it. */
export type OllamaAnswer = {
  /** When the request came, as RFC 3339. */
  created_at: string;
  /** Whether it is complete. */
  done: boolean;
  /** Why it ended: `stop`, `length`, or `load`. */
  done_reason?: string | null;
  /** Tokens generated for the answer. */
  eval_count?: number | null;
  /** Nanoseconds of generating those behind the first. */
  eval_duration?: number | null;
  exo?: ExoSummary | null;
  /** Extension, of a line behind which another node can go on: to be sent as `Last-Event-ID`. */
  exo_id?: number | null;
  /** Nanoseconds until the prompt was begun: of loading and waiting. */
  load_duration?: number | null;
  /** Probabilities, where asked for. */
  logprobs?: Array<TokenLogprob> | null;
  message?: OllamaMessage | null;
  /** The model's name, as the request gave it. */
  model: string;
  /** Tokens of the prompt. */
  prompt_eval_count?: number | null;
  /** Nanoseconds of reading the prompt. */
  prompt_eval_duration?: number | null;
  /** What is said; of `/api/generate`. */
  response?: string | null;
  /** What was thought; of `/api/generate`. */
  thinking?: string | null;
  /** Nanoseconds that the request took in all. */
  total_duration?: number | null;
};

/** A call of a tool. */
export type OllamaCall = {
  /** The tool that is called. */
  function: OllamaFunction;
  /** The call's own name. */
  id: string;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type OllamaChatRequest = {
  /** `json` or a schema; kept to while the answer is made */
  format?: unknown;
  /** what a person placed stays, what a request loaded goes after `unload_idle_s`; only 0 without a prompt, which asks to unload, is refused: `exo unload` */
  keep_alive?: unknown;
  logprobs?: unknown;
  /** at most 16,384; without any the model is made ready, and nothing else */
  messages: unknown;
  /** name or id of a model */
  model: unknown;
  options?: unknown;
  /** default true: a line of JSON for each piece */
  stream?: unknown;
  /** true, which a model that does not think refuses, false, low, medium, high; left out, a model that thinks does, and the answer shows it */
  think?: unknown;
  /** at most 512; where the model's template has a form for calls that is recognised; with `format`, an answer that calls none is of it */
  tools?: unknown;
  /** 0 to 20 */
  top_logprobs?: unknown;
  /** default false: a prompt that is too long is an error; true: whole turns of a conversation go, the oldest first, and `exo.left_out_messages` says how many messages */
  truncate?: unknown;
};

/** More of a model. */
export type OllamaDetails = {
  /** Architecture of the model, as a list of one. */
  families: Array<string>;
  /** Architecture of the model. */
  family: string;
  /** Format of the files: `gguf` or `safetensors`. */
  format: string;
  /** How many parameters it has: `8.0B`, `596.0M`; empty where that is not known. */
  parameter_size: string;
  /** Always empty. */
  parent_model: string;
  /** The type that most bytes have. */
  quantization_level: string;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type OllamaEmbedRequest = {
  /** the first so many elements, scaled to length 1: where the model's files say that it was trained for that, or all of them */
  dimensions?: unknown;
  /** a string, token ids, or an array of at most 2048 of these */
  input: unknown;
  /** what a person placed stays, what a request loaded goes after `unload_idle_s` */
  keep_alive?: unknown;
  /** name or id of a model */
  model: unknown;
  /** those of `/api/generate`: all but `num_ctx` are about generated tokens and ask for nothing */
  options?: unknown;
  /** extension: `first`, `mean` or `last`; left out, as the model's files say, or else the node's setting `embedding_pooling`; needed where neither does */
  pooling?: unknown;
  /** default true: what is too long loses its end, and the answer says how many tokens; false: an error */
  truncate?: unknown;
};

/** The answer of `/api/embeddings`. */
export type OllamaEmbedding = {
  /** The vector, of length 1. */
  embedding: Array<number>;
  /** Extension: tokens at the end of the text that were left out, where there are any. */
  truncated_tokens?: number | null;
};

/** The answer of `/api/embed`. */
export type OllamaEmbeddings = {
  /** One vector for each input, each of length 1. */
  embeddings: Array<Array<number>>;
  /** Nanoseconds until the first input was begun: of loading and waiting. */
  load_duration: number;
  /** The model's name, as the request gave it. */
  model: string;
  /** Tokens of all inputs that were read. */
  prompt_eval_count: number;
  /** Nanoseconds that the request took in all. */
  total_duration: number;
  /** Extension: tokens at the ends of inputs that were left out, where there are any. */
  truncated_tokens?: number | null;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type OllamaEmbeddingsRequest = {
  /** what a person placed stays, what a request loaded goes after `unload_idle_s` */
  keep_alive?: unknown;
  /** name or id of a model */
  model: unknown;
  /** those of `/api/generate`: all but `num_ctx` are about generated tokens and ask for nothing */
  options?: unknown;
  /** extension: `first`, `mean` or `last`; left out, as the model's files say, or else the node's setting `embedding_pooling`; needed where neither does */
  pooling?: unknown;
  /** a string; what is too long loses its end, and the answer says how many tokens */
  prompt: unknown;
};

/** The body of an answer that is not a success, and the last line of a stream that failed. */
export type OllamaError = {
  /** Extension: stable, for programs, the same as in every dialect. */
  code: string;
  /** What was attempted, with which numbers. */
  error: string;
  /** Extension: the field to change. */
  param?: string | null;
};

/** A tool's name and arguments. */
export type OllamaFunction = {
  /** An object, spelt as the model spelt it. */
  arguments: Record<string, unknown>;
  /** Which call, from 0. */
  index: number;
  /** Name of the tool. */
  name: string;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type OllamaGenerateRequest = {
  /** `json` or a schema; kept to while the answer is made */
  format?: unknown;
  /** what a person placed stays, what a request loaded goes after `unload_idle_s`; only 0 without a prompt, which asks to unload, is refused: `exo unload` */
  keep_alive?: unknown;
  logprobs?: unknown;
  /** name or id of a model */
  model: unknown;
  options?: unknown;
  /** without it the model is made ready, and nothing else */
  prompt?: unknown;
  /** true: the prompt as it is, through no template */
  raw?: unknown;
  /** default true: a line of JSON for each piece */
  stream?: unknown;
  /** where the model has fill-in-the-middle tokens */
  suffix?: unknown;
  /** not with `raw` or `suffix` */
  system?: unknown;
  /** true, which a model that does not think refuses, false, low, medium, high; left out, a model that thinks does, and the answer shows it */
  think?: unknown;
  /** 0 to 20 */
  top_logprobs?: unknown;
  /** default false: a prompt that is too long is an error; true: whole turns of a conversation go, the oldest first, and `exo.left_out_messages` says how many messages */
  truncate?: unknown;
};

/** What the model says. */
export type OllamaMessage = {
  /** Text of the message. */
  content: string;
  /** Always `assistant`. */
  role: string;
  /** What was thought before. */
  thinking?: string | null;
  /** Tools that the model calls. A call that the end of the answer cut is not among them. */
  tool_calls?: Array<OllamaCall>;
};

/** One model. */
export type OllamaModel = {
  /** Tokens of the context that it is placed with; of `/api/ps`. */
  context_length?: number | null;
  /** Format, family and size of the model. */
  details: OllamaDetails;
  /** The model's id in exo. */
  digest: string;
  /** When it is unloaded if no request comes, as far as this machine knows of requests. Far away where a person placed it: that stays. Of `/api/ps`. */
  expires_at?: string | null;
  /** The model's name, the same as `name`. */
  model: string;
  /** When its file was last changed, where that is known; of `/api/tags`. */
  modified_at?: string | null;
  /** What to send as `model`. */
  name: string;
  /** Bytes of its weights. */
  size: number;
  /** Of these, bytes on other devices than processors; of `/api/ps`. */
  size_vram?: number | null;
};

/** A list of models. */
export type OllamaModels = {
  /** The models, sorted by name. */
  models: Array<OllamaModel>;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type OllamaNamedRequest = {
  /** nothing is fetched: `exo pull` does that */
  insecure?: unknown;
  /** name or id of a model */
  model: unknown;
  /** the older name of `model` */
  name?: unknown;
  /** of `/api/show`: the same */
  options?: unknown;
  /** of `/api/pull`; its answer is one line in both */
  stream?: unknown;
};

/** The answer of `/api/pull` for a model that is known. */
export type OllamaPull = {
  /** Always `success`. */
  status: string;
};

/** The answer of `/api/show`. */
export type OllamaShow = {
  /** `completion`, and `tools`, `thinking`, `insert` where template and vocabulary have a form for them. */
  capabilities: Array<string>;
  /** Format, family and size of the model. */
  details: OllamaDetails;
  /** Licence of the model, where it is known. */
  license?: string | null;
  /** Name of the model and numbers of its architecture, by the keys of GGUF files. */
  model_info: Record<string, unknown>;
  /** When its file was last changed, where that is known. */
  modified_at?: string | null;
};

/** The answer of `/api/version`. */
export type OllamaVersion = {
  /** The version of this program. */
  exo: string;
  /** The version of Ollama whose API is spoken. */
  version: string;
};

/** A node nearby that belongs to another cluster. */
export type OtherClusterView = {
  /** Address that the node gives. */
  address: string;
  /** Name that the node gives itself. Not to be trusted. */
  name: string;
  /** Id of the node that was seen. */
  node: string;
};

/** A part of an answer. */
export type OutputItem = {
  /** Text of the thought. */
  content: Array<ReasoningText>;
  /** Id of the item. */
  id: string;
  /** State of the item. */
  status: ResponseStatus;
  /** Always empty: the whole thought is in `content`. */
  summary: Array<unknown>;
  type: "reasoning";
} | {
  /** Text of the message. */
  content: Array<OutputText>;
  /** Id of the item. */
  id: string;
  /** Always `assistant`. */
  role: string;
  /** State of the item. */
  status: ResponseStatus;
  type: "message";
} | {
  /** A JSON object as text. */
  arguments: string;
  /** To be named by the result. */
  call_id: string;
  /** Id of the item. */
  id: string;
  /** Name of the tool. */
  name: string;
  /** State of the item. */
  status: ResponseStatus;
  type: "function_call";
};

/** Text that is said. */
export type OutputText = {
  /** Always empty. */
  annotations: Array<unknown>;
  /** Probabilities, where asked for. */
  logprobs: Array<TokenLogprob>;
  /** Text of this part. */
  text: string;
  /** Always `output_text`. */
  type: string;
};

/** About the generated tokens. */
export type OutputTokensDetails = {
  /** Those that belong to thoughts. */
  thinking_tokens: number;
};

/** Asks for a model to be placed. What is left out is chosen by the planner. */
export type PlaceRequest = {
  /** Tokens whose keys and values it may hold, over all sequences and what is kept of earlier ones, in whole pages. Left out, the node's setting; without one every slot has room for a full context. A context that is left out is no longer than this. */
  cache_tokens?: number | null;
  /** Longest sequence, prompt and answer. */
  context_tokens?: number | null;
  /** Nodes, or `NODE/DEVICE`, that must not. */
  exclude?: Array<string>;
  kv?: KvType | null;
  /** The model's name or id. */
  model: string;
  /** Split over at least so many devices, of different nodes where they can hold it. */
  nodes_min?: number | null;
  objective?: PlanObjective | null;
  /** Devices that must take part, now and whenever it is placed again: `NODE` or `NODE/DEVICE`, and after `=` how many layers, or which (`0..8`). */
  pins?: Array<string>;
  /** Unload an instance of the model that was placed with other numbers, instead of refusing. */
  replace?: boolean;
  /** Sequences that may run at once. */
  slots?: number | null;
  /** Sequences that run at once: what `throughput` is computed for, and nothing else. */
  streams?: number | null;
};

/** One device of a plan's cluster. */
export type PlanDeviceView = {
  /** Name of the device. */
  device: string;
  /** Id of the device's node. */
  node: string;
  /** Name of the device's node. */
  node_name: string;
  /** What the plan would cost with it if it is not used, or without it if it is; `null` where nobody looked or there is none. */
  otherwise_ms?: number | null;
  /** How fast it is with each type of weights that makes up at least a hundredth of the model: what the plan counts with, before what steps have taught. */
  rates?: Array<PlanRateView>;
  /** Why the device holds what it holds. */
  reason: string;
  /** The five scores, 0 to 1. */
  scores: ScoresView;
};

/** A link that a plan goes over, with the numbers that it counts with. */
export type PlanLinkView = {
  /** Bytes per second over the link. */
  bytes_per_s: FigureView;
  /** The sending node's name. */
  from: string;
  /** Round trip, in milliseconds. */
  rtt_ms: FigureView;
  /** Name of the receiving node. */
  to: string;
};

/** What a plan should be good at. */
export type PlanObjective = "latency" | "throughput";

/** Asks how a model would be placed, without loading anything. */
export type PlanQuery = {
  /** Tokens of an answer, 128 if left out. */
  answer_tokens?: number | null;
  /** Tokens whose keys and values it may hold. */
  cache_tokens?: number | null;
  /** Longest sequence, prompt and answer. */
  context_tokens?: number | null;
  /** Nodes, or `NODE/DEVICE`, that must not. */
  exclude?: Array<string>;
  kv?: KvType | null;
  /** The model's name or id. */
  model: string;
  /** Split over at least so many devices. */
  nodes_min?: number | null;
  /** What the plan should be good at. */
  objective?: PlanObjective;
  /** Devices that must take part: `NODE` or `NODE/DEVICE`, and after `=` how many layers, or which (`0..8`). */
  pins?: Array<string>;
  /** Tokens of a prompt, 512 if left out. */
  prompt_tokens?: number | null;
  /** Sequences that may run at once. */
  slots?: number | null;
  /** Sequences that run at once: what `throughput` is computed for. */
  streams?: number | null;
};

/** A device's rates with one type of weights. */
export type PlanRateView = {
  /** How old the last of them is, in seconds. */
  age_s?: number | null;
  /** How the weights are stored: `Q4_K`. */
  dtype: string;
  /** Operations per second for a prompt. */
  flops_per_s: number;
  /** Bytes of them that a token reads per second. */
  read_bytes_per_s: number;
  /** Of so many measurements; `null` where it is not measured. */
  samples?: number | null;
  /** Where the first of these comes from: `measured`, `measured long ago`, `stated`, `taken from devices alike`, `taken from Q8_0`, `derived` or `estimated`. */
  source: string;
};

/** One stage of a plan. */
export type PlanStageView = {
  /** Name of the stage's device. */
  device: string;
  /** Bytes of keys and values. */
  kv_bytes: number;
  /** Layers of the stage. */
  layers: LayersView;
  /** Id of the stage's node. */
  node?: string;
  /** Name of the stage's node. */
  node_name: string;
  /** Weights, as the device holds them. */
  weight_bytes: number;
  /** Bytes of everything else, such as rows and buffers. */
  workspace_bytes: number;
};

/** A plan: what every device would get, and why. */
export type PlanView = {
  /** Other plans, the best first, and behind them those that are impossible: the whole model on each device (of sixteen at most), without each device of the plan, and with each that it leaves out. The last two are looked for where at most sixteen devices may be used. */
  alternatives: Array<AlternativeView>;
  /** Tokens whose keys and values are held. */
  cache_tokens: number;
  /** Tokens of the longest sequence. */
  context_tokens: number;
  /** Every device, with its reason. */
  devices: Array<PlanDeviceView>;
  faster?: FasterPlanView | null;
  /** How much better another plan may be at most, in per cent of this one. */
  gap_percent: number;
  /** The links between its nodes, in the order of its stages, and the way back to the first. */
  links?: Array<PlanLinkView>;
  /** No plan costs less. */
  lower_bound_ms: number;
  /** Name of the model. */
  model: string;
  /** What the objective counts, in milliseconds: one request, or a token for every stream. */
  objective_ms: number;
  /** How fast the placement is expected to be. */
  predicted: PredictionView;
  /** Sequences that may run at once. */
  slots: number;
  /** Stages of the plan, first stage first. */
  stages: Array<PlanStageView>;
  /** The verdict in words. */
  verdict?: string;
};

/** How fast a placement is expected to be. */
export type PredictionView = {
  /** Bytes that nodes without the file fetch before the first answer. */
  fetch_bytes: number;
  /** Milliseconds that fetching takes at least. */
  fetch_ms: number;
  /** Milliseconds of a token's time that pass between stages. */
  hop_ms: RangeView;
  /** Whether a link that it goes over is not measured yet: then that time is a guess. */
  is_fetch_estimated?: boolean;
  /** Tokens of the prompt: 512, or what goes into the context with an answer. */
  prompt_tokens?: number;
  /** Number of streams that `total_tokens_per_s` counts. */
  streams: number;
  /** Tokens per second of one stream, in the middle of the answer. */
  tokens_per_s: RangeView;
  /** Tokens per second over all of them. */
  total_tokens_per_s: RangeView;
  /** Milliseconds to the first token of that prompt. */
  ttft_ms: RangeView;
  /** Tokens per second of one stream as they were predicted before the steps of its devices corrected that; `null` where they have not. */
  uncorrected_tokens_per_s?: number | null;
};

/** About the prompt's tokens. */
export type PromptTokensDetails = {
  /** Those that need not be computed again. */
  cached_tokens: number;
};

/** See [`Provenance`]. A plan counts what is older than a day with a wider range. */
export type ProvenanceView = {
  /** Seconds since the last one: rounded down to a minute, beyond an hour to ten, beyond a day to an hour. */
  age_s: number;
  /** Number of measurements. */
  samples: number;
};

/** What `prune` has deleted. */
export type PrunedView = {
  /** Bytes that they took on disk. */
  bytes: number;
  /** Number of partial files deleted. */
  files: number;
};

/** Asks for a model of a hub. */
export type PullRequest = {
  /** With `update_of`: the commit, as `/exo/v1/hub/updates` named it. Without it what the reference means now. */
  commit?: string | null;
  /** Another hub than the node's: the address of a mirror. */
  endpoint?: string | null;
  /** Only makes the model known, by the heads of its files: each node fetches its own layers when the model is placed. For repositories of a hub. */
  layers_only?: boolean;
  /** Ranges of a file at once, 1 to 8; as many as help, up to this. */
  ranges_max?: number | null;
  /** Most bytes a second. */
  rate_max_bytes_per_s?: number | null;
  /** As in `exo pull`: `hf.co/ORG/REPO[:QUANTISATION][@REVISION]`, or the address of a GGUF file. */
  reference: string;
  /** It is to run: what is here of the reference is taken, of whatever commit, and the hub is asked only where nothing is. */
  to_run?: boolean;
  token?: HubToken | null;
  /** The id of a model of this node of which `reference` means a newer commit. Its type and its files that have not changed are taken over; once the newer one is here it has the name, and the older one goes as soon as nothing uses it. */
  update_of?: string | null;
};

/** State of a download. */
export type PullState = "queued" | "resolving" | "fetching" | "adding" | "done" | "paused" | "failed";

/** One download. */
export type PullView = {
  /** Bytes a second over the last seconds; `null` while nothing comes. */
  bytes_per_s?: number | null;
  /** Commit of the repository that is fetched; `null` until it is known. */
  commit?: string | null;
  /** What went wrong; `null` unless something did. */
  error?: string | null;
  /** Path of the file that is being fetched. */
  file?: string | null;
  /** Number of files in all. */
  files: number;
  /** What the user can do about the error. */
  hint?: string | null;
  /** Id of the download, as paths of the API name it. */
  id: string;
  /** Whether every byte of the weights was compared with a digest of the hub, once that is known. */
  is_verified?: boolean | null;
  /** What of the repository was chosen, for example `Q4_K_M`; `null` until that is known. */
  label?: string | null;
  /** Licence of the repository, where it is known. */
  licence?: string | null;
  /** The model's name, once it can be used. */
  model?: string | null;
  /** Id of the node that fetches. */
  node: string;
  /** Name of the node that fetches. */
  node_name: string;
  /** Where it is on the node's disk, once it can be used. */
  path?: string | null;
  /** Byte ranges being fetched at this moment. */
  ranges: number;
  /** Why that of the repository was chosen. */
  reason?: string | null;
  /** Bytes that have come, with those that are not verified yet: some of these may have to come again. */
  received_bytes?: number;
  /** The reference that was asked for. */
  reference: string;
  /** Models that were deleted from the node's disk to make room for it: others have them. */
  removed?: Array<RemovedModelView>;
  replaced?: ReplacedModelView | null;
  /** Seconds left at that rate; `null` while nothing comes. */
  seconds_left?: number | null;
  /** Host that the files come from. */
  source: string;
  /** What came from where, most first, while it is fetched; absent where there is one source. */
  sources?: Array<FetchSourceView>;
  /** When the download was asked for, in seconds since 1970. */
  started_unix_s: number;
  /** State of the download. */
  state: PullState;
  /** Terms of the licence that are worth knowing before. */
  terms?: string | null;
  /** Bytes in all; `null` until the hub has said. */
  total_bytes?: number | null;
  /** Bytes that are on disk and verified. They never become fewer. */
  verified_bytes: number;
  /** Whether nothing had to be fetched. */
  was_here: boolean;
};

/** A number with the range it is expected in. */
export type RangeView = {
  /** The value that is expected. */
  expected: number;
  /** The most that is expected. */
  high: number;
  /** The least that is expected. */
  low: number;
};

/** Text that is thought. */
export type ReasoningText = {
  /** Text of this part. */
  text: string;
  /** Always `reasoning_text`. */
  type: string;
};

/** A request of a client of the node that answers that has ended. Never its text. */
export type RecentRequestView = {
  /** Prompt tokens whose keys and values were kept from earlier requests. */
  cached_tokens: number;
  /** How it ended: `stop`, `length`, `tool_calls`, `cancelled`, `client_left`, or the code of its error. */
  end: string;
  /** Which way it came: `chat`, `messages`, `ollama_chat` and so on, as in metrics. */
  endpoint: string;
  /** The request's id, as in `x-request-id`. */
  id: string;
  /** The model's name, as it was asked for. */
  model: string;
  /** Who asked: "local", the name of an API key, or the beginning of its hash where it has none. */
  principal: string;
  /** Tokens of its prompt; 0 where it ended before it was read. */
  prompt_tokens: number;
  /** Milliseconds that the request waited before its prompt was read. */
  queue_ms?: number | null;
  /** Stages that its answer went through. */
  stages: number;
  /** When the request came, in milliseconds since 1970. */
  started_unix_ms: number;
  times?: StepTimesView | null;
  /** Tokens of its answer, over all choices. */
  tokens: number;
  /** Tokens per second after the first. */
  tokens_per_s?: number | null;
  /** Milliseconds that the request took. */
  total_ms: number;
  /** Milliseconds from the request's arrival to its first token. */
  ttft_ms?: number | null;
};

/** A model that was deleted from a node's disk to make room. */
export type RemovedModelView = {
  /** Bytes that deleting it freed. */
  bytes: number;
  /** The deleted model's name. */
  name: string;
  /** When it was last in use there, in seconds since 1970; 0 if never. */
  used_unix_s: number;
};

/** The answer of `/apply-template`. */
export type RenderedPrompt = {
  /** What the template made. */
  prompt: string;
};

/** A model of which a newer commit has come. */
export type ReplacedModelView = {
  /** What the older commit is called now. */
  name: string;
  /** Whether it is deleted. If not, something uses it, and it goes when that ends. */
  removed: boolean;
};

/** What comes of asking again. */
export type ReplanDecision = "keep" | "would_move" | "move";

/** Asks whether an instance should be elsewhere. */
export type ReplanRequest = {
  /** Only say it: nothing is moved. */
  dry_run?: boolean;
};

/** One stage of the best plan. */
export type ReplanStageView = {
  /** Name of the stage's device. */
  device: string;
  /** Layers of the stage. */
  layers: LayersView;
  /** Name of the stage's node. */
  node_name: string;
};

/** Whether an instance should be elsewhere: what that gains, and what it costs. */
export type ReplanView = {
  /** What was decided. */
  decision: ReplanDecision;
  /** Of these, bytes that are fetched from another node. */
  fetch_bytes: number;
  /** Milliseconds that fetching takes at least. */
  fetch_ms: number;
  /** Id of the instance. */
  instance: string;
  /** Bytes of weights that a move loads. */
  load_bytes: number;
  /** What its objective counts where it is, in milliseconds: one request, or a token for every stream. */
  now_ms: number;
  /** Why it was decided so. */
  reason: string;
  /** Answers that run there: a move has all their tokens computed again. */
  running?: number;
  /** Where the best plan has its stages, first stage first. */
  stages: Array<ReplanStageView>;
  /** The same by the best plan. */
  then_ms: number;
};

/** One file of a repository. */
export type RepoFileView = {
  /** The file's path in the repository. */
  path: string;
  /** SHA-256 of the file, where the hub has it. */
  sha256?: string | null;
  /** The file's length in bytes. */
  size: number;
};

/** A repository of a hub. */
export type RepoView = {
  /** The commit that was looked at. */
  commit: string;
  /** Whether the hub asks for consent first. */
  gated: boolean;
  /** The licence of the repository. */
  licence: string;
  /** Its models, largest first. */
  models: Array<VariantView>;
  /** The repository, `ORG/REPO`. */
  repo: string;
  /** Terms of the licence that are worth knowing before. */
  terms?: string | null;
};

/** What a request does. */
export type RequestPhase = "queued" | "prefill" | "decode" | "interrupted";

/** A request of a client of the node that answers, one for each choice. Never its text. */
export type RequestView = {
  /** Milliseconds since the request came. */
  age_ms: number;
  /** The request's id, as in `x-request-id`. */
  id: string;
  /** Which choice of the request it is, from 0. */
  index: number;
  /** Milliseconds until it ends with an error unless it has gone on by then, while it is interrupted. */
  interrupted_left_ms?: number | null;
  /** Milliseconds that it has been interrupted, where it is. */
  interrupted_ms?: number | null;
  /** Name of the model. */
  model: string;
  /** What the request does now. */
  phase: RequestPhase;
  /** Who asked: "local", the name of an API key, or the beginning of its hash where it has none. */
  principal: string;
  /** Tokens of the prompt. */
  prompt_tokens: number;
  /** How often the answer went on after an interruption. */
  resumed: number;
  /** Tokens of the answer so far. */
  tokens: number;
  /** What the request waits for, while it does; on one line. */
  waits_for?: string | null;
};

/** An answer, whole or so far as it is made. It repeats what the request asked for. */
export type Response = {
  /** Always false. */
  background: boolean;
  /** When the answer was made, in seconds since 1970. */
  created_at: number;
  error?: ResponseError | null;
  exo?: ExoSummary | null;
  /** `resp_` and the request's id. */
  id: string;
  incomplete_details?: IncompleteDetails | null;
  /** The instructions, as the request gave them. */
  instructions?: string | null;
  /** The limit of tokens, as the request gave it. */
  max_output_tokens?: number | null;
  /** The metadata, as the request gave it. */
  metadata: Record<string, unknown>;
  /** The model's name, as the request gave it. */
  model: string;
  /** Always `response`. */
  object: string;
  /** Thought, text and calls, in their order. */
  output: Array<OutputItem>;
  /** Whether calls may be parallel, as the request gave it. */
  parallel_tool_calls: boolean;
  /** The id of the response before, as the request gave it. */
  previous_response_id?: string | null;
  /** The settings of thinking, as the request gave them. */
  reasoning: Record<string, unknown>;
  /** State of the answer. */
  status: ResponseStatus;
  /** Whether it is kept. */
  store: boolean;
  /** The temperature, as the request gave it, or the default. */
  temperature: number;
  /** The format of the text, as the request gave it. */
  text: Record<string, unknown>;
  /** As requested. */
  tool_choice: string | Record<string, unknown>;
  /** The tools, as the request gave them. */
  tools: Array<Record<string, unknown>>;
  /** The number of alternatives, as the request gave it. */
  top_logprobs: number;
  /** The bound on probability mass, as the request gave it, or the default. */
  top_p: number;
  /** `auto` or `disabled`, as the request gave it. */
  truncation: string;
  usage?: ResponseUsage | null;
};

/** An answer that is kept no longer. */
export type ResponseDeleted = {
  /** Always true. */
  deleted: boolean;
  /** Id of the deleted response. */
  id: string;
  /** Always `response`. */
  object: string;
};

/** Why an answer failed. */
export type ResponseError = {
  /** Code of the error; stable, for programs. */
  code: string;
  /** What happened, to be displayed. */
  message: string;
};

/** One event of a streamed response. */
export type ResponseEvent = (EventBody) & ({
  /** Number of the event, from 0, one more each time. */
  sequence_number: number;
});

/** About the prompt's tokens. */
export type ResponseInputTokensDetails = {
  /** Always 0: what is read is kept by itself. */
  cache_write_tokens: number;
  /** Those that were there already. */
  cached_tokens: number;
};

/** About the generated tokens. */
export type ResponseOutputTokensDetails = {
  /** Those that belong to thoughts. */
  reasoning_tokens: number;
};

/** State of an answer, or of an item of it. */
export type ResponseStatus = "in_progress" | "completed" | "incomplete" | "failed";

/** Tokens a request took. */
export type ResponseUsage = {
  /** Tokens of the prompt. */
  input_tokens: number;
  /** How many input tokens were found in the cache. */
  input_tokens_details: ResponseInputTokensDetails;
  /** Tokens generated for the answer. */
  output_tokens: number;
  /** How many output tokens were thoughts. */
  output_tokens_details: ResponseOutputTokensDetails;
  /** Sum of input and output tokens. */
  total_tokens: number;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type ResponsesRequest = {
  client_metadata?: unknown;
  /** extension; -2 to 2 */
  frequency_penalty?: unknown;
  /** `message.output_text.logprobs`; thoughts come in clear, and what is of tools that do not run here asks for nothing */
  include?: unknown;
  /** a string, or up to 16,384 items */
  input: unknown;
  /** not those of `previous_response_id` */
  instructions?: unknown;
  /** extension; token ids of the vocabulary to -100 to 100, at most 1024 */
  logit_bias?: unknown;
  /** an upper bound; the context bounds it anyway */
  max_output_tokens?: unknown;
  /** it bounds calls of tools that run at their vendor; there are none */
  max_tool_calls?: unknown;
  /** at most 16 strings; the answer repeats it */
  metadata?: unknown;
  /** extension; 0 to 1 */
  min_p?: unknown;
  /** name or id of a model */
  model: unknown;
  /** default true; false: one call at most */
  parallel_tool_calls?: unknown;
  /** extension; -2 to 2 */
  presence_penalty?: unknown;
  /** of an answer that this node keeps; else a 404 */
  previous_response_id?: unknown;
  /** what was read before is found by itself */
  prompt_cache_key?: unknown;
  /** what was read before is found by itself */
  prompt_cache_options?: unknown;
  /** what was read before is found by itself */
  prompt_cache_retention?: unknown;
  reasoning?: unknown;
  /** extension; 0.01 to 10 */
  repetition_penalty?: unknown;
  /** extension: the penalties count so many tokens before the next, prompt included; 0, the default, is all */
  repetition_penalty_window?: unknown;
  safety_identifier?: unknown;
  /** extension; the same seed, prompt and parameters give the same text */
  seed?: unknown;
  /** default true: in the memory of the node that answers, for who asked, until others need the room */
  store?: unknown;
  stream?: unknown;
  stream_options?: unknown;
  /** 0 to 2, default 1; 0 is greedy */
  temperature?: unknown;
  text?: unknown;
  /** none, auto, required, a function, allowed_tools */
  tool_choice?: unknown;
  /** at most 512; where the model's template has a form for calls that is recognised */
  tools?: unknown;
  /** extension; 0 and -1 keep all */
  top_k?: unknown;
  /** 0 to 20; of the raw logits */
  top_logprobs?: unknown;
  /** 0 to 1 */
  top_p?: unknown;
  /** `disabled`, the default: what is too long is refused with both numbers; `auto`: whole turns go, the oldest first, and `exo.left_out_messages` says how many messages */
  truncation?: unknown;
  /** extension; 0 to 1 */
  typical_p?: unknown;
  user?: unknown;
};

/** Where an answer went on after what computed it was lost. Tokens that were sent before stay as they are: where other kernels go on, the text may be another than theirs alone. */
export type Resumed = {
  /** Tokens of it that were there already. */
  after_tokens: number;
  /** Which choice, from 0. */
  index: number;
  /** The kernel families that compute it from there on. */
  kernels: Array<string>;
};

/** What a member is to be. */
export type RoleRequest = {
  /** What the member may do from now on. */
  role: MemberRole;
};

/** How tokens are chosen. What is left out has the default named here. */
export type SamplingFields = {
  /** Subtracted per occurrence from generated tokens, -2 to 2. Default 0. */
  frequency_penalty?: number | null;
  /** Token id to bias, -100 to 100. */
  logit_bias?: Record<string, number> | null;
  /** Extension: drop tokens less likely than this times the likeliest. Default 0. */
  min_p?: number | null;
  /** Subtracted once from generated tokens, -2 to 2. Default 0. */
  presence_penalty?: number | null;
  /** Extension: above 1 makes tokens already seen less likely. Default 1. */
  repetition_penalty?: number | null;
  /** Extension: the penalties count so many tokens before the next, prompt included. Default 0, all. */
  repetition_penalty_window?: number | null;
  /** The same seed, prompt and parameters give the same text. Default: drawn at random. */
  seed?: number | null;
  /** 0 is greedy, at most 2. Default 1. */
  temperature?: number | null;
  /** Extension: keep the k likeliest tokens. Default 0, all (-1 too). */
  top_k?: number | null;
  /** Nucleus: keep the likeliest tokens whose probabilities sum to this. Default 1. */
  top_p?: number | null;
  /** Extension: keep the most typical tokens whose probabilities sum to this. Default 1. */
  typical_p?: number | null;
};

/** Scores of a device, 0 to 1. */
export type ScoresView = {
  /** Rates of its links: 5. */
  bandwidth: number;
  /** Speed, by the fastest of the cluster: 40 of 100. */
  compute: number;
  /** Part of the model that it holds: 30. */
  memory: number;
  /** Round trips to the others: 15. */
  network: number;
  /** Points for what its temperature allows: 10 of 100. */
  thermal: number;
  /** Sum of all these points, 100 at most. */
  total: number;
};

/** One entry of Prometheus' HTTP service discovery. */
export type ScrapeTargets = {
  /** Labels that Prometheus attaches to its series. */
  labels: Record<string, string>;
  /** Addresses of one node, `host:port`. */
  targets: Array<string>;
};

/** Sensor readings; `null` where nothing tells. */
export type SensorsView = {
  /** Clock of the compute units, in MHz. */
  clock_mhz?: number | null;
  /** Power drawn, in watts. */
  power_w?: number | null;
  /** Temperature in degrees Celsius. */
  temperature_c?: number | null;
  /** Part of the time it was busy, 0 to 1. */
  utilisation?: number | null;
};

/** Points of one series. */
export type SeriesPoints = {
  /** What was measured, with its unit: `temperature_c`. */
  name: string;
  /** `null` where nothing was told. */
  points: Array<number | null>;
};

/** Measurements of one thing over the last hour. */
export type SeriesView = {
  /** When the last point was measured, in seconds since 1970. */
  end_unix_s: number;
  /** Each series, oldest point first, all of the same length. */
  series: Array<SeriesPoints>;
  /** Seconds between one point and the next. */
  step_s: number;
  /** What the series are of: `NODE/DEVICE`, an instance, a node. */
  subject: string;
};

/** What a token or key opens. */
export type SessionAccess = "owner" | "viewer" | "chat";

/** Asks for a session: with a code, or with the local secret. */
export type SessionRequest = {
  /** The code that `exo open` gave out. */
  code?: string | null;
  /** What the file `api-secret` of the data folder holds. */
  secret?: string | null;
};

/** What the sender of a request may do here. */
export type SessionView = {
  /** What its token or key opens. */
  access: SessionAccess;
  /** A session ends when nothing was asked in it for so long; `null` for keys, which do not end. */
  idle_max_s?: number | null;
  /** Name of the node that answers. */
  name: string;
  /** Programs that ask this listener need an API key, from this machine too. */
  needs_key: boolean;
  /** The node that answers. */
  node: string;
  /** The request came from another machine over plain HTTP: whoever is on the way reads it. */
  plain_http: boolean;
  /** What every request of the page sends as its bearer token, in the answer that begins the session and in no other. */
  token?: string | null;
  /** Version of exo on that node. */
  version: string;
};

/** How much an alert matters. */
export type Severity = "info" | "warning" | "critical";

/** Silences an alert for a while. */
export type SilenceRequest = {
  /** Id of an alert, or of a rule for all of its alerts. */
  alert: string;
  /** For how many seconds, a week at most; 0 ends a silence. */
  for_s: number;
};

/** A node that did not answer. */
export type SilentNodeView = {
  /** Name of the node that did not answer. */
  name: string;
  /** Id of the node that did not answer. */
  node: string;
  /** Why its lines are missing. */
  reason: string;
};

/** The first event of a stream, and again where the reader's last one is not known any more: all there is. */
export type SnapshotEvent = {
  /** When, in milliseconds since 1970 by the clock of the node that answers. */
  at_unix_ms: number;
  /** The whole cluster, as of now. */
  cluster: ClusterView;
};

/** What a stage computed for each token behind the first of an answer, beside what the model of cost expects of the same, as its device is measured and corrected now. */
export type StageMeasuredView = {
  /** Milliseconds for a token as predicted. */
  predicted_token_ms: number;
  /** Milliseconds for a token as measured: the mean of these tokens. */
  token_ms: number;
  /** Number of tokens that were measured. */
  tokens: number;
};

/** What a stage does before it computes. */
export type StagePhase = "fetching" | "loading";

/** What one stage is expected to compute. */
export type StagePredictionView = {
  /** Milliseconds for the prompt of the instance's prediction. */
  prompt_ms: number;
  /** Milliseconds for a token of one stream. */
  token_ms: number;
};

/** How far a stage is that does not compute yet. */
export type StageProgressView = {
  /** How fast they come since this node has first seen it at work; absent for the first seconds. */
  bytes_per_s?: number | null;
  /** Bytes in place. What was on the disk before counts. */
  done_bytes: number;
  /** What the stage does. */
  phase: StagePhase;
  /** Seconds that the rest takes at that rate; absent while nothing comes. */
  seconds_left?: number | null;
  /** What came from where, most first, while it is fetched; absent where there is one source. */
  sources?: Array<FetchSourceView>;
  /** Bytes that it needs. */
  total_bytes: number;
};

/** Measurements of one shard. */
export type StageTelemetryView = {
  /** Seconds that it has computed since it was loaded. */
  busy_s: number;
  /** The device that holds it. */
  device: string;
  /** Id of the instance. */
  instance: string;
  /** Layers that the stage holds. */
  layers: LayersView;
  /** Name of the model. */
  model: string;
  /** Number of the stage, from 0. */
  stage: number;
  /** Bytes of weights in place. */
  weight_bytes: number;
};

/** What one stage computed of a request. */
export type StageTimeView = {
  /** Milliseconds of computing after the first token. */
  answer_ms: number;
  /** Device of the stage on that node. */
  device?: string | null;
  /** Id of the stage's node, where the reader may see the cluster. */
  node?: string | null;
  /** Milliseconds of computing until the first token. */
  prompt_ms: number;
};

/** One stage of an instance. */
export type StageView = {
  /** The stage's device on that node. */
  device: string;
  /** Whether it holds the embedding. */
  embedding: boolean;
  /** Where its tensors come from when they are not on its disk: the name of a member that has the whole model, else its hub and the members that have parts of it. */
  fetched_from?: string | null;
  /** Whether it holds the output head. */
  head: boolean;
  /** Bytes of its key-value cache. */
  kv_bytes: number;
  /** Layers that the stage holds. */
  layers: LayersView;
  measured?: StageMeasuredView | null;
  /** Id of the stage's node. */
  node: string;
  /** Name of the stage's node. */
  node_name: string;
  predicted?: StagePredictionView | null;
  progress?: StageProgressView | null;
  /** Bytes of hidden rows that it keeps: with them the stage behind it is rebuilt when that is lost, and none in front computes again. */
  rows_bytes?: number;
  /** The most that these rows may take, in the memory that the node leaves free. */
  rows_bytes_max?: number;
  /** Share of a token's time spent here, 0 to 1, measured. */
  time_share?: number | null;
  /** Bytes of tensors that the stage is to hold. */
  weight_bytes: number;
  /** Bytes of these tensors that are in place. */
  weight_bytes_held: number;
  /** Of those, bytes that are read from the model's file for now: the stage answers, slower than it will when they are packed in memory. 0 once it has settled. */
  weight_bytes_waiting?: number;
};

/** Where the time of a request's steps went, as its scheduler has counted it. Of several choices, and of steps on their way at once, each counts; of an answer that was interrupted, its last part. */
export type StepTimesView = {
  /** Milliseconds on links and waiting for other steps, after the first token. */
  between_answer_ms: number;
  /** Milliseconds on links and waiting for other steps, until the first token. */
  between_prompt_ms: number;
  /** What each stage computed, in order. */
  stages: Array<StageTimeView>;
};

/** Why an answer ended. */
export type StopReason = "end_turn" | "max_tokens" | "stop_sequence" | "tool_use";

/** What else to stream. */
export type StreamOptions = {
  /** End with a chunk that has no choices but the usage. Default false. */
  include_usage?: boolean;
};

/** What is new of a call. */
export type StreamedCall = {
  /** What is new of the call. */
  function: StreamedFunction;
  /** In the call's first delta. */
  id?: string | null;
  /** Which call, from 0. */
  index: number;
  /** `function`, in the call's first delta. */
  type?: string | null;
};

/** What is new of a call's name and arguments. */
export type StreamedFunction = {
  /** JSON text to append to the arguments. */
  arguments: string;
  /** The tool, in the call's first delta. */
  name?: string | null;
};

/** Measurements of all members, as the node that answers knows them. */
export type TelemetryView = {
  /** Members, sorted by name. */
  nodes: Array<NodeTelemetryView>;
  /** The node that answers. */
  self_node: string;
};

/** A part of a time that came otherwise than expected. */
export type TermOffView = {
  /** Milliseconds that the part took. */
  measured_ms: number;
  /** Milliseconds that were predicted for it. */
  predicted_ms: number;
  /** The stage that computes it, first stage 0; `null` for what is left behind all stages: links, and waiting. Chunks of a prompt that overlap over stages take away from that. */
  stage?: number | null;
};

/** Measured times of a request. */
export type Timings = {
  /** Tokens of the prompt read per second. */
  prompt_tokens_per_s?: number | null;
  /** From arrival to the first prompt token at work. */
  queued_ms: number;
  /** Tokens generated per second over all choices, after the first token; `None` for a single token. */
  tokens_per_s?: number | null;
  /** From arrival to the first generated token. */
  ttft_ms: number;
};

/** How many tokens a prompt has. */
export type TokenCount = {
  /** All of them: of the system's prompt, the tools and the messages, as the model's template prints them. */
  input_tokens: number;
};

/** The tokens of a text. */
export type TokenList = Array<number> | Array<TokenWithPiece>;

/** The probability of one token. */
export type TokenLogprob = {
  /** Bytes of the token. */
  bytes: Array<number>;
  /** Natural logarithm; -9999 for nearly impossible. */
  logprob: number;
  /** Text of the token. */
  token: string;
  /** The likeliest tokens at its place. */
  top_logprobs: Array<TopLogprob>;
};

/** A token's text. */
export type TokenText = string | Array<number>;

/** A token with its text. */
export type TokenWithPiece = {
  /** Id of the token. */
  id: number;
  /** Text of the token. */
  piece: TokenText;
};

/** Every field, and what stands in it, is in `docs/api.md`. */
export type TokenizeRequest = {
  /** with `messages`: the answer's opening at the end; default true */
  add_generation_prompt?: unknown;
  /** with `content`: the model's own start and end tokens; default false */
  add_special?: unknown;
  /** with `prompt`: default true; with `messages` only false, as the template writes them */
  add_special_tokens?: unknown;
  /** llama.cpp's: a string */
  content?: unknown;
  /** as in `/v1/chat/completions` */
  messages?: unknown;
  /** name or id of a model; left out, it is the one that is placed, if there is one */
  model?: unknown;
  /** the same; the prompt is the same for both */
  parallel_tool_calls?: unknown;
  /** with `content`: control tokens in the text are those tokens; default true */
  parse_special?: unknown;
  /** vLLM's: a string */
  prompt?: unknown;
  /** the same */
  reasoning_effort?: unknown;
  /** with `prompt` or `messages`: each token's text; of at most 65,536 tokens */
  return_token_strs?: unknown;
  /** the same; with `none`, too, the template is told of the tools */
  tool_choice?: unknown;
  /** with `messages`, as in `/v1/chat/completions` */
  tools?: unknown;
  /** with `content`: each token's text; of at most 65,536 tokens */
  with_pieces?: unknown;
};

/** The answer of `/tokenize`. */
export type Tokenized = {
  /** How many; to vLLM's body. */
  count?: number | null;
  /** Tokens of the model's context; to vLLM's body. */
  max_model_len?: number | null;
  /** The texts, with `return_token_strs`; bytes that are no text alone are U+FFFD. */
  token_strs?: Array<string> | null;
  /** The ids; with `with_pieces` objects of `id` and `piece`, which is text, or bytes where it is no text alone. */
  tokens: TokenList;
};

/** The answer of `/tokenizer_info`, by the names of `tokenizer_config.json`. */
export type TokenizerInfo = {
  /** The token that begins a text, where there is one. */
  bos_token?: string | null;
  /** The chat template, as the model's files have it; absent where they have none. */
  chat_template?: string | null;
  /** The token that ends a text, where there is one. */
  eos_token?: string | null;
};

/** A call in a message that comes back. */
export type ToolCall = {
  /** Name and arguments of the call. */
  function: CalledFunction;
  /** As the answer named it. */
  id: string;
  /** Always `function`. */
  type: string;
};

/** The probability of a token that could have been chosen. */
export type TopLogprob = {
  /** Bytes of the token. */
  bytes: Array<number>;
  /** Natural logarithm; -9999 for nearly impossible. */
  logprob: number;
  /** Text of the token. */
  token: string;
};

/** Measured rates of a device for one type of weights; see [`TypeRates`]. */
export type TypeRatesView = {
  /** How the weights are stored: `Q4_K`. */
  dtype: string;
  /** Operations per second for a prompt. */
  flops_per_s: number;
  /** How often and how long ago that was measured. */
  measured: ProvenanceView;
  /** Bytes of them per second that a step of 16 tokens of as many streams reads and computes with; `null` where it was not measured. */
  read_16_rows_bytes_per_s?: number | null;
  /** Bytes of them, as files store them, that a token reads per second. */
  read_bytes_per_s: number;
};

/** A coordinator that the node that answers does not hear, and somebody who does. */
export type UnheardCoordinatorView = {
  /** The coordinator's node id. */
  coordinator: string;
  /** The node id of a member that follows it and is heard here. */
  followed_by: string;
};

/** Asks what updates would fetch. */
export type UpdateQuery = {
  /** Another hub than the node's: the address of a mirror. */
  endpoint?: string | null;
  /** Names or ids of models on this node's disk; all that came from a hub or a registry without one. */
  models?: Array<string>;
  token?: HubToken | null;
};

/** Whether there is something newer of a model. */
export type UpdateState = "current" | "newer" | "pinned" | "failed";

/** What an update of a model would fetch. */
export type UpdateView = {
  /** Its chunks. */
  chunks: number;
  /** Chunks that are here: of an attempt before, and of files that have not changed. */
  chunks_here: number;
  /** The commit that is here; of a registry, what stands for its manifest. */
  commit: string;
  /** Why there is no room for the newer one, or why nothing is known of it. */
  error?: string | null;
  /** Bytes of it that are to be fetched. */
  fetch_bytes: number;
  /** Files that differ between the two commits. */
  files: Array<FileChangeView>;
  /** What the user can do about the error. */
  hint?: string | null;
  /** Id of the model, for `update_of`. */
  id: string;
  /** Instances that run the one that is here, and stay on it. */
  instances: Array<string>;
  /** Whether only its heads would be fetched: each node then fetches its own layers when the model is placed. */
  layers_only: boolean;
  /** The licence of the newer one, if it is another. */
  licence?: string | null;
  /** Name of the model. */
  model: string;
  /** The commit that the reference means now, once the hub has said. */
  newest?: string | null;
  /** The reference that was asked for when the model was fetched. */
  reference: string;
  /** Models that would be deleted from this node's disk to make room; others have them. */
  removes: Array<string>;
  /** Whether there is something newer. */
  state: UpdateState;
  /** Terms of the licence that are worth knowing before. */
  terms?: string | null;
  /** Bytes of the newer one. */
  total_bytes: number;
};

/** Tokens a request took. */
export type UsageBody = {
  /** Tokens generated over all choices. */
  completion_tokens: number;
  /** About what was generated. */
  completion_tokens_details: CompletionTokensDetails;
  /** Tokens of the prompt. */
  prompt_tokens: number;
  /** Tokens of the prompt that were found in the cache. */
  prompt_tokens_details: PromptTokensDetails;
  /** Sum of the tokens of prompt and answers. */
  total_tokens: number;
};

/** One model of a repository. */
export type VariantView = {
  /** Bytes of the model's files. */
  bytes: number;
  /** Files of the model. */
  files: Array<RepoFileView>;
  /** The quantisation, or `safetensors`. */
  label: string;
  /** Memory that it takes, about. */
  memory_bytes: number;
  /** What is wrong with its files. */
  problem?: string | null;
  /** Whether exo computes with this type. */
  supported: boolean;
};

/** Something that went wrong. */
export type WarningView = {
  /** When, in seconds since 1970. */
  at_unix_s: number;
  /** What, on one line. */
  text: string;
};
