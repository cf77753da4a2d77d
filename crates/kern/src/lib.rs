//! kern
