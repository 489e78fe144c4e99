// The fixtures are plain JavaScript, so that the stub server runs as it is.
type Fields = Record<string, unknown>;
type Any = any; // eslint-disable-line -- fixtures are shaped like the API, which is checked where they are used
export function nodeId(n: number): string;
export function device(id: string, kind: string, name: string, total_gib: number, fields?: Fields): Any;
export function node(n: number, name: string, devices: Any[], fields?: Fields): Any;
export function link(from: number, to: number, rtt_ms: number, bytes_per_s: number | null, fields?: Fields): Any;
export function stage(n: number, name: string, device: string, start: number, end: number, fields?: Fields): Any;
export function instance(id: string, model: string, stages: Any[], fields?: Fields): Any;
export function alert(rule: string, severity: string, subject: string, text: string, what_to_do: string, fields?: Fields): Any;
export function models(): Any[];
export function plan(query: Any): Any;
export const fixtures: Record<"empty" | "home" | "lost" | "hundred" | "hostile", () => Any>;
