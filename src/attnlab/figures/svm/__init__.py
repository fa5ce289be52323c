"""*Transformers as Support Vector Machines*: every figure."""
