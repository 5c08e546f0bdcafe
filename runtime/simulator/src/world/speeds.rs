//! [`Speeds`]: how unfair the schedule is at the moment.

use super::interface::Options;
use super::state::random::Random;

/// The mean number of picks between two changes of the speeds.
const PICKS_PER_CHANGE: u32 = 1500;

/// The probability in percent that a GPU, CTA, warp or copy that is drawn also runs.
#[derive(Debug)]
pub(super) struct Speeds {
    skew: u32,
    /// The number of picks until the speeds change.
    left: u32,
    pub devices: Vec<u32>,
    pub ctas: Vec<u32>,
    pub warps: Vec<u32>,
    pub copies: u32,
}

impl Speeds {
    pub fn new(options: &Options) -> Self {
        Self {
            skew: options.skew.min(100),
            left: 0,
            devices: vec![100; options.devices as usize],
            ctas: vec![100; 61],
            warps: vec![100; 17],
            copies: 50,
        }
    }

    /// Counts a pick, and draws new speeds when their time has come.
    pub fn count_pick(&mut self, random: &mut Random) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = PICKS_PER_CHANGE / 2 + random.below(PICKS_PER_CHANGE as usize) as u32;
        let skew = self.skew;
        let mut draw = || match random.below(6) {
            0 => 100 - skew,
            1 => 100 - skew * 9 / 10,
            2 => 100 - skew / 2,
            _ => 100,
        };
        self.devices.iter_mut().for_each(|speed| *speed = draw());
        self.ctas.iter_mut().for_each(|speed| *speed = draw());
        self.warps.iter_mut().for_each(|speed| *speed = draw());
        self.copies = [2, 20, 50, 90][random.below(4)];
    }
}
