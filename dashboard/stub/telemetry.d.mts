// As for the fixtures.
type Any = any; // eslint-disable-line -- shaped like the API, which is checked where it is used
export function series(subject: string, kind: string): Any;
export function checks(nodes: Any[]): Any;
export function logs(query: URLSearchParams, nodes: Any[]): Any;
export function pulls(): Any[];
export function recent(): Any[];
export function telemetry(view: Any): Any;
