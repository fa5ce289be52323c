"""*Transformers as Support Vector Machines*: every claim, a file per part of the paper."""
