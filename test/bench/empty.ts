// The least that any TypeScript file costs.
export {};
