//! Properties of every plan.
