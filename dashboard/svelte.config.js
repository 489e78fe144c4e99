/** @type {import("svelte/compiler").CompileOptions} */
export const compilerOptions = { runes: true };
export default { compilerOptions };
