//! Which claims are orphaned because the process that created them died. Pure: it decides and does nothing.
//!
//! A caller that acts on it takes the lease's operation lock, reads the claim again, asks again, removes the sandbox by its
//! name, and only then removes the claim. The other order would lose the sandbox if it is killed in between.

use super::claim::{Claim, State};
use super::creator::{Creator, Liveness};

/// The claims to sweep, given what became of their makers.
pub fn orphans<'a>(claims: &'a [Claim], liveness: &dyn Fn(&Creator) -> Liveness) -> Vec<&'a Claim> {
    let mut orphans: Vec<_> = claims.iter().collect();
    orphans.retain(|claim| is_orphan(claim, liveness));
    orphans
}

/// Whether no live process will finish the sandbox of this claim, or remove it after its only run. In doubt: no orphan.
pub fn is_orphan(claim: &Claim, liveness: &dyn Fn(&Creator) -> Liveness) -> bool {
    let unattended = match claim.state {
        State::Creating => true,
        State::Ready => !claim.keep,
        State::Releasing => false,
    };
    let died = |creator: &Creator| match liveness(creator) {
        Liveness::Dead => true,
        Liveness::Alive | Liveness::Unknown => false,
    };
    unattended && claim.creator.as_ref().is_some_and(died)
}

#[cfg(test)]
mod tests {
    use super::super::tests::claim;
    use super::*;

    #[test]
    fn only_what_the_dead_left_unattended_is_swept() {
        let made_by = |id: &str, pid: u32| {
            let mut claim = claim(id);
            claim.creator = Some(Creator {
                pid,
                ..Creator::default()
            });
            claim
        };
        let mut without_creator = claim("x_6");
        without_creator.creator = None;
        let ready = |id: &str, pid: u32, keep: bool| {
            let mut claim = made_by(id, pid);
            claim.state = State::Ready;
            claim.keep = keep;
            claim
        };
        let claims = [
            made_by("x_1", 1),
            made_by("x_2", 2),
            made_by("x_3", 3),
            ready("x_4", 1, true),
            made_by("x_5", 1).releasing(),
            without_creator,
            made_by("x_7", 1),
            ready("x_8", 1, false),
            ready("x_9", 2, false),
            ready("x_10", 3, false),
        ];
        let liveness = |creator: &Creator| match creator.pid {
            1 => Liveness::Dead,
            2 => Liveness::Alive,
            _ => Liveness::Unknown,
        };
        let swept: Vec<_> = orphans(&claims, &liveness)
            .into_iter()
            .map(|claim| claim.lease_id.as_str())
            .collect();
        assert_eq!(swept, ["x_1", "x_7", "x_8"]);
    }
}
