// Who belongs to the cluster, there or not.

import { ask, messageOf } from "../api/client";
import type { MemberView } from "../api/types";

class MemberStore {
  list = $state.raw<MemberView[] | null>(null);
  problem = $state("");

  async load(): Promise<void> {
    try {
      this.list = await ask<MemberView[]>("/exo/v1/members");
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
  }
}

export const members = new MemberStore();
