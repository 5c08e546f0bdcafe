//! Tests of environment variables: their meaning, and the errors for invalid values.

use super::*;

fn with(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    |name| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    }
}

#[test]
fn a_secret_is_long_and_never_shown() {
    let secret = |text: &'static str| read_secret(move |_| Some(text.as_bytes().to_vec()));
    assert!(read_secret(|_| None).expect("absent").is_none());
    assert!(secret("0123456789abcdef").expect("16 bytes").is_some());
    let error = secret("open sesame").expect_err("too short").to_string();
    assert!(
        error.contains("11 bytes") && !error.contains("sesame"),
        "{error}"
    );
    assert!(
        secret("").is_err(),
        "an empty one is a mistake, not the wish to have none"
    );
}

#[test]
fn timeouts_are_positive_numbers() {
    let timeouts = |variables| read_timeouts(with(variables));
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let usual = timeouts(&[]).expect("the default");
    let all = |t: Timeouts| (t.device, t.host(false), t.host(true));
    assert_eq!(all(usual), (s(30), s(30), s(300)));
    let every = timeouts(&[("MKERNEL_TIMEOUT_MS", "250")]).expect("set");
    assert_eq!(all(every), (ms(250), ms(250), ms(250)));
    let host = timeouts(&[("MKERNEL_HOST_TIMEOUT_MS", "9")]).expect("set");
    assert_eq!(all(host), (s(30), ms(9), ms(9)));
    for name in ["MKERNEL_TIMEOUT_MS", "MKERNEL_HOST_TIMEOUT_MS"] {
        for value in ["0", "soon"] {
            let lookup = |found: &str| (found == name).then(|| value.to_owned());
            let error = read_timeouts(lookup).expect_err("no time").to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}

#[test]
fn a_host_id_is_neither_empty_nor_long() {
    let id = |text: &str| read_host_id(|_| Some(text.to_owned()));
    assert_eq!(read_host_id(|_| None).expect("absent"), None);
    assert_eq!(id("rack 7").expect("set").as_deref(), Some("rack 7"));
    id(&"x".repeat(256)).expect("as long as it may be");
    for wrong in ["", " ", &"x".repeat(257)] {
        let error = id(wrong).expect_err("no name").to_string();
        assert!(error.contains("MKERNEL_HOST_ID"), "{error}");
    }
}

#[test]
fn proxies_run_where_the_variable_says() {
    let cores = |value: &'static str| read_proxy_cores(move |_| Some(value.to_owned()));
    assert_eq!(read_proxy_cores(|_| None).expect("absent"), ProxyCores::Any);
    assert_eq!(cores(" near ").expect("set"), ProxyCores::Near);
    assert_eq!(
        cores("8-10,3").expect("set"),
        ProxyCores::These(vec![3, 8, 9, 10])
    );
    for wrong in ["9-8", "far", "1;2", "-1", "0-99999999"] {
        let error = cores(wrong).expect_err(wrong).to_string();
        assert!(error.contains(wrong) && error.contains("near"), "{error}");
    }
}

#[test]
fn the_device_is_a_gpu_unless_it_is_said_otherwise() {
    let device = |variables| read_device(with(variables));
    assert_eq!(device(&[]).expect("absent"), DeviceChoice::Gpu);
    assert_eq!(
        device(&[("MKERNEL_DEVICE", "sim")]).expect("set"),
        DeviceChoice::Simulated
    );
    assert_eq!(
        device(&[("MKERNEL_DEVICE", "auto")]).expect("set"),
        DeviceChoice::Auto
    );
    let error = device(&[("MKERNEL_DEVICE", "cpu")]).expect_err("none of the three");
    assert!(error.to_string().contains("gpu, sim or auto"), "{error}");
}

#[test]
fn the_transport_is_one_of_three_or_not_chosen() {
    let transport = |variables| read_transport(with(variables));
    assert!(transport(&[]).expect("absent").is_none());
    for name in ["emulated", "rc", "efa"] {
        let only = |known: &str| (known == "MKERNEL_TRANSPORT").then(|| name.to_owned());
        let read = read_transport(only).expect("set");
        assert_eq!(read.expect("chosen").name(), name);
    }
    let error = transport(&[("MKERNEL_TRANSPORT", "tcp")]).expect_err("none of the three");
    assert!(error.to_string().contains("emulated, rc or efa"), "{error}");
}

#[test]
fn simulated_gpus_are_as_the_variables_say() {
    let variables = &[
        ("MKERNEL_SIM_SEED", "77"),
        ("MKERNEL_SIM_SMS", "16"),
        ("MKERNEL_SIM_SKEW", "90"),
    ];
    let expected = Simulation {
        ranks: 4,
        seed: 77,
        sms: 16,
        skew: 90,
        timeline: false,
    };
    assert_eq!(read_simulation(with(variables), 4).expect("set"), expected);
    assert!(read_simulation(with(&[("MKERNEL_SIM_SMS", "many")]), 1).is_err());
}

#[test]
fn measured_choices_of_a_file_precede_those_shipped() {
    let tuned = |value: &str| {
        let value = value.to_owned();
        read_tuned(move |name| (name == "MKERNEL_TUNED").then(|| value.clone()))
    };
    assert_eq!(&tuned("").expect("the default"), Tuned::shipped());
    assert_eq!(tuned("none").expect("none"), Tuned::default());
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("tuned.toml");
    let path = path.to_str().expect("UTF-8");
    let error = tuned(path).expect_err("no file").to_string();
    assert!(
        error.contains("MKERNEL_TUNED") && error.contains("No such file"),
        "{error}"
    );
    std::fs::write(path, "kernel = 1").expect("a file");
    let error = tuned(path).expect_err("another file").to_string();
    assert!(error.contains("mkernel-gen tune"), "{error}");
    let kernel = "[[tuned]]\ngpu = \"GPU\"\nsm_count = 1\nlink_gb_s = 1.0\nus = 1.0\nuntuned_us = 2.0\n\
                  kernel = { op = \"gemm\", world = 1, m = 8, n = 64, k = 64 }";
    std::fs::write(path, kernel).expect("a file");
    let read = tuned(path).expect("valid");
    assert_eq!(read.kernels().len(), 1 + Tuned::shipped().kernels().len());
    assert_eq!(read.kernels()[0].gpu, "GPU");
}
