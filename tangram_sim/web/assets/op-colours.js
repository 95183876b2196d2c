// The colour and the words of every kind of op, in timelines and tables.

export const OPS = {
  F: ["forward", "fill0"],
  B: ["backward", "fill1"],
  W: ["weight gradients", "fill7"],
  SEND_F: ["activations to the next stage", "fill6"],
  SEND_B: ["gradients to the stage before", "fill3"],
  SYNC: ["gradient synchronisation", "fill4"],
  TIED: ["tied embeddings", "fill5"],
  OPTIMIZER: ["optimizer", "fill2"],
};

export const opWords = (kind) => (OPS[kind] || [kind])[0];
export const opColour = (kind) => (OPS[kind] || ["", "fill5"])[1];
