// Asks the node. Every request has a deadline, carries the session's token and fails with one kind of error.

import { t } from "../text";
import type { ErrorBody } from "./types";

const TOKEN = "exo-session";
const DEADLINE_MS = 15_000;

/** So long after the last key or press nobody is taken to be at the page: what it asks by itself then keeps no session. */
const ATTENDED_MS = 10 * 60_000;

let used_ms = Date.now();

/** Somebody is at the page. */
export function noteUsed(): void {
  used_ms = Date.now();
}

/** Why a request brought nothing. `status` is 0 when no answer came. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export const isGone = (error: unknown) => error instanceof ApiError && error.status === 0;
/** Whether the node says that there is no such thing. A route that it does not have is another matter. */
export const isNotThere = (error: unknown) => error instanceof ApiError && error.status === 404 && ["not_found", "model_not_found"].includes(error.code);
/** Whether the node says that what is asked goes against how things are. */
export const isConflict = (error: unknown) => error instanceof ApiError && error.code === "conflict";
export const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

let onUnauthorised = () => {};

/** Calls back when the node no longer knows the token. */
export function whenUnauthorised(then: () => void): void {
  onUnauthorised = then;
}

// A token belongs to one origin, port included, as local storage does. See decision 0046.
export const token = {
  get: (): string | null => stored(() => localStorage.getItem(TOKEN)),
  set: (value: string) => stored(() => localStorage.setItem(TOKEN, value)) ?? (inMemory = value),
  forget: () => {
    inMemory = null;
    stored(() => localStorage.removeItem(TOKEN));
  },
};

let inMemory: string | null = null;

function stored<T>(use: () => T): T | null {
  try {
    return use();
  } catch {
    return null; // storage is refused: the token lives as long as the page
  }
}

export type Ask = {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  deadline_ms?: number;
  /** Instead of the kept token. */
  bearer?: string;
  /** Goes out even where the page is closed meanwhile. */
  keepalive?: boolean;
};

/** The answer's body as JSON; `undefined` for an empty one. */
export async function ask<T>(path: string, options: Ask = {}): Promise<T> {
  const deadline = AbortSignal.timeout(options.deadline_ms ?? DEADLINE_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, deadline]) : deadline;
  const response = await open(path, { ...options, signal });
  const text = await response.text().catch((error: unknown) => {
    throw unreachable(error, options.signal);
  });
  return (text === "" ? undefined : parse(text, response.status)) as T;
}

/** The answer's head; for streams. The caller bounds its time. */
export async function open(path: string, options: Ask = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...options.headers };
  const bearer = options.bearer ?? token.get() ?? inMemory;
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  if (Date.now() - used_ms > ATTENDED_MS) headers["exo-unattended"] = "true";
  const init: RequestInit = { method: options.method ?? "GET", headers, credentials: "omit", cache: "no-store" };
  if (options.signal) init.signal = options.signal;
  if (options.keepalive) init.keepalive = true;
  // The node takes no POST without JSON: that is how it knows a page of its own from a form of another.
  const body = options.body ?? (init.method === "POST" || init.method === "PUT" ? {} : undefined);
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const response = await fetch(path, init).catch((error: unknown) => {
    throw unreachable(error, options.signal);
  });
  if (response.ok) return response;
  const error = await refusal(response);
  // Not where somebody has signed in since.
  if (response.status === 401 && bearer && !options.bearer && path !== "/exo/v1/session" && bearer === (token.get() ?? inMemory)) onUnauthorised();
  throw error;
}

function unreachable(error: unknown, signal?: AbortSignal): Error {
  const name = String((error as { name?: unknown } | null)?.name);
  if (name === "AbortError" || (signal?.aborted && name !== "TimeoutError")) return error as Error;
  const late = name === "TimeoutError";
  return new ApiError(0, late ? "no_answer" : "unreachable", late ? t.errors.late : t.errors.unreachable);
}

async function refusal(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text) as ErrorBody;
    return new ApiError(response.status, String(error.code), String(error.message));
  } catch {
    return new ApiError(response.status, "http", t.errors.status(response.status));
  }
}

function parse(text: string, status: number): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(status, "not_json", t.errors.not_json);
  }
}

export const isAbort = (error: unknown) => (error as { name?: unknown } | null)?.name === "AbortError";
