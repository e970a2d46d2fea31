//! Functions of the definition beside those of the standard library in `f64`.

use kernels::math::*;

fn relative_error(found: f32, wanted: f64) -> f64 {
    ((f64::from(found) - wanted) / wanted.abs().max(1e-30)).abs()
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut x = -87.0f32;
    while x < 88.5 {
        assert!(relative_error(exp(x), f64::from(x).exp()) < 2.4e-7, "exp({x}) = {}", exp(x));
        x += 0.003_7;
    }
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(-104.5), 0.0);
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn softplus_keeps_relative_accuracy_far_below_zero() {
    let mut x = -80.0f32;
    while x < 80.0 {
        let wanted = f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p();
        assert!(relative_error(softplus(x), wanted) < 4e-7, "softplus({x}) = {}", softplus(x));
        x += 0.01;
    }
}

#[test]
fn logistic_functions_saturate() {
    assert_eq!(sigmoid(200.0), 1.0);
    assert_eq!(sigmoid(-200.0), 0.0);
    assert_eq!(silu(-200.0), 0.0);
    assert_eq!(silu(200.0), 200.0);
    for i in -2000..2000 {
        let x = i as f32 * 0.01;
        let wanted = 1.0 / (1.0 + (-f64::from(x)).exp());
        assert!(relative_error(sigmoid(x), wanted) < 4e-7);
    }
}
