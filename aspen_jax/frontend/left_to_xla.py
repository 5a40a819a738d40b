"""Primitives of JAX without an op, by the reason why: each of them stays with XLA.

A test fails where the installed JAX has a primitive that is neither here, nor has an op, nor is inlined, nor has tiled bodies. So
somebody looks at each primitive that a new version of JAX brings.
"""

from __future__ import annotations

_BY_REASON = {
    "it has an effect, or reads and writes a mutable reference": (
        "accum_grad_in_ref addupdate box_get box_set check core_map create_linear debug_callback debug_print empty empty2 "
        "empty_ref free_ref freeze get io_callback log_extend log_read new_box new_log new_ref run_state stage swap"
    ),
    "it calls code that is no JAX": "call_exported cudnn_fusion custom_partitioning ffi_call pure_callback",
    "it works between devices or on where an array lies": (
        "all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start "
        "all_to_all all_to_all_done all_to_all_start axis_index device_put inspect_sharding layout_constraint pbroadcast "
        "pbroadcast_done pbroadcast_dynamic pbroadcast_start pin pmax pmin ppermute ppermute_done ppermute_start precv preduced "
        "psend psum psum_done psum_invariant psum_invariant_start psum_start ragged_all_to_all reduce_scatter "
        "reduce_scatter_done reduce_scatter_start reduced_vary_cast reduced_vary_cast_p relayout reshard sharding_constraint "
        "unpin unreduced_pmax unreduced_pmin unreduced_psum unreduced_psum_start unreduced_reduce_scatter "
        "unreduced_reduce_scatter_start vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint"
    ),
    "it orders what XLA runs and computes nothing": "after_all create_token dce_sink tie unreachable",
    "it works on symbolic shapes": "broadcast_to dim_as_value dimension_size shape_assertion",
    "it works on values that are not arrays of numbers": "from_edtype to_edtype",
    "it chooses between platforms when the program is lowered": "platform_index",
    "tiles hold no complex numbers": "complex conj fft imag real",
    "its steps depend on each other; XLA calls LAPACK or a loop": (
        "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu lu_pivots_to_permutation ormqr qr "
        "schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve"
    ),
    "it is computed by a loop of its own": "custom_linear_solve",
    "it sorts roughly, or compares as sorting does": "approx_top_k eq_to le_to lt_to",
    "random numbers are XLA's, so that bits are the same": (
        "iota_2x32_shape philox2x32 philox4x32 random_bits random_clone random_fold_in random_gamma random_seed random_split "
        "random_unwrap random_wrap rng_bit_generator rng_uniform threefry2x32 threefry4x32"
    ),
    "its series has many cases": (
        "bessel_i0e bessel_i1e digamma igamma igamma_grad_a igammac lgamma mulhi polygamma regularized_incomplete_beta zeta"
    ),
    "it combines by a function of the user's": "reduce reduce_window select_and_scatter",
    "no kernel has been written yet": "scatter-sub",
    "its operands are 8-bit or scaled floats": "scaled_dot scaled_matmul scaled_matmul_wrapper",
    "it is cuDNN's attention": (
        "dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd "
        "dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper "
        "dot_product_attention_fwd dot_product_attention_fwd_wrapper"
    ),
    "it is there for derivatives that were not taken": (
        "call_hi_primitive_linearized custom_jvp_call_jaxpr custom_lin linear_call remat_opt zeros_like"
    ),
    "only JAX can expand it; JAX 0.12 and later do so before tiling": "call_hi_primitive",
    "JAX binds it in no function that is traced today": "call",
}

REASONS: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
