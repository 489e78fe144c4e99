// What is fetched from several at once: a text for each of them.

import type { FetchSourceView } from "../../api/types";
import { bytes, printable, rate } from "../../lib/format";
import { t } from "../../text";

/** The most first, as the node has them; nothing of an older node, and where there is one source. */
export function sourceTexts(sources: readonly FetchSourceView[] | undefined): string[] {
  return (sources ?? []).map((from) => t.downloads.of_source(from.member ? printable(from.member, 40) : t.downloads.hub, bytes(from.bytes), rate(from.bytes_per_s)));
}
