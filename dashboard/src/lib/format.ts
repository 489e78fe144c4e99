// Numbers, times and strangers' text as people read them. Pure; `null` becomes a dash, never a zero.

export const DASH = "–";

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** `3.2 GiB`. */
export function bytes(value: number | null | undefined): string {
  if (!isNumber(value)) return DASH;
  let unit = 0;
  let size = Math.abs(value);
  while (size >= 1000 && unit < BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${value < 0 ? "-" : ""}${digits(size)} ${BYTES[unit]}`;
}

/** `118 MB/s`: rates are decimal, as networks are. */
export function rate(value: number | null | undefined): string {
  if (!isNumber(value)) return DASH;
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  let unit = 0;
  let size = value;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${digits(size)} ${units[unit]}`;
}

/** Three significant digits, without an exponent where a person would want none. */
export function digits(value: number | null | undefined): string {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  // Nothing that is measured is so large: a stranger's number would fill the screen.
  if (size >= 1e15) return value.toExponential(1);
  if (size >= 100) return Math.round(value).toLocaleString("en", { useGrouping: true });
  return value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

export function integer(value: number | null | undefined): string {
  if (!isNumber(value)) return DASH;
  // Of what rounds up to zero there is no `-0`.
  return Math.abs(value) >= 1e15 ? digits(value) : (Math.round(value) || 0).toLocaleString("en");
}

/** `42 %`. */
export function percent(part: number | null | undefined): string {
  return isNumber(part) ? `${integer(part * 100)} %` : DASH;
}

/** `0.4 ms`, `3.2 s`, `4 min`. */
export function millis(value: number | null | undefined): string {
  if (!isNumber(value)) return DASH;
  if (value < 1000) return `${digits(value)} ms`;
  if (value < 120_000) return `${digits(value / 1000)} s`;
  return duration(value / 1000);
}

/** `12 s`, `4 min`, `3 h 20 min`, `5 d`. */
export function duration(seconds: number | null | undefined): string {
  if (!isNumber(seconds)) return DASH;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${integer(Math.floor(hours / 24))} d`;
}

/** `4:07`, for what counts down. */
export function countdown(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** `14:03:20` today, with its date otherwise. */
export function clock(unix_ms: number, now_ms = Date.now()): string {
  const at = new Date(unix_ms);
  if (Number.isNaN(at.getTime())) return DASH;
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date(now_ms).toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

/** An id, short enough to compare by eye. */
export function short(id: string): string {
  return id.length > 10 ? id.slice(0, 8) : id;
}

/** A stranger's word on one line: control and direction characters are shown as such, what is long is cut. */
export function printable(text: string, length_max = 200): string {
  const clean = text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]/gu, "�");
  const letters = [...clean];
  return letters.length > length_max ? `${letters.slice(0, length_max - 1).join("")}…` : clean;
}

export function isNumber(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}
