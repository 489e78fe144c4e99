// Who belongs to the cluster, there or not.

import { ask } from "../api/client";
import type { MemberView } from "../api/types";

class MemberStore {
  list = $state.raw<MemberView[] | null>(null);
  problem = $state("");

  async load(): Promise<void> {
    try {
      this.list = await ask<MemberView[]>("/exo/v1/members");
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }
}

export const members = new MemberStore();
