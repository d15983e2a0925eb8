"""Models: loading any Hugging Face causal LM, the embedded base, the value head."""

import logging

# Transformers imports torchao wherever it is installed, as with gptqmodel; gptqmodel and peft import bitsandbytes. Both
# say at each start what they lack, whether or not a model needs them, and torch what it thinks of torchao. What
# bitsandbytes advises installing would load code for CPUs from the hub, which is not wanted.
logging.getLogger("torchao").setLevel(logging.ERROR)
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
logging.getLogger("transformers.integrations.bitsandbytes").addFilter(
    lambda record: "dequantized in" not in record.getMessage()  # how an export unpacks weights
)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "register_constant" not in record.getMessage())
