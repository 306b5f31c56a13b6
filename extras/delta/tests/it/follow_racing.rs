//! Followers with reads that fail, and publishers that start over, at each call to the store in
//! turn.

use std::fs;

use safetensors_testing::files::copy_all;

use crate::followed::{Publisher, tensors};
use crate::hooked::Hooked;
use crate::support::{files, read};

#[test]
fn a_call_that_fails_changes_nothing() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    let before = files(publisher.directory.path());
    for number in 0.. {
        // A second look finds files that the first one did not, so all later calls fail, too.
        let store = Hooked::broken_from(number);
        let polled = publisher.follower().poll_in(store.clone(), publisher.root());
        if store.calls() <= number {
            assert!(polled.unwrap().is_some());
            assert!(number > 10, "{number}");
            break;
        }
        assert!(polled.is_err(), "{number}");
        assert_eq!(files(publisher.directory.path()), before, "{number}");
    }
    publisher.assert_served(2, &tensors(1, 2));
}

#[test]
fn a_publisher_may_restart_at_any_moment() {
    // Two runs of a publisher, and a follower that is behind in the first.
    let (one, other) = (Publisher::new(), Publisher::new());
    one.run(1, 1);
    assert!(one.poll().unwrap().is_some());
    one.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    other.run(2, 1);
    let mut seen = [0; 4];
    for number in 0.. {
        let here = Publisher::new();
        copy_all(one.directory.path(), here.directory.path());
        let (root, new) = (here.root(), other.root());
        let store = Hooked::new(move |call| {
            // The version 2 goes first, and the version 0 of the new run comes next.
            match call.checked_sub(number) {
                Some(0) => fs::remove_dir_all(root.join("weight_v000002")),
                Some(2) => {
                    fs::remove_dir_all(&root)?;
                    copy_all(&new.join("weight_v000000"), &root.join("weight_v000000"));
                    Ok(())
                }
                Some(4) => {
                    copy_all(&new.join("weight_v000001"), &root.join("weight_v000001"));
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        here.follower().poll_in(store.clone(), here.root()).unwrap();
        let version = here.follower().version().unwrap().unwrap();
        let found = read(&here.served());
        let all = [(1, 1), (2, 1), (0, 2), (1, 2)];
        let which = all.iter().position(|&(of, run)| {
            of == version && found == tensors(run, u8::try_from(of).unwrap())
        });
        seen[which.unwrap_or_else(|| panic!("{number}: {version}"))] += 1;
        if store.calls() <= number {
            break;
        }
        // Whatever it has found, it comes to the newest version.
        if here.root().join("weight_v000001").exists() && store.calls() > number + 4 {
            while here.poll().unwrap().is_some() {}
            here.assert_served(1, &tensors(2, 1));
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
