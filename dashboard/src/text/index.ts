// The language of the page. A second language is chosen here.

import { en, type Texts } from "./en";

export const t: Texts = en;
