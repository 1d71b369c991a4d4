//! Names that lead where a name must not lead by accident.

use super::entrances::{absolute, binary, connect, connect_binary, host_header, socks_name, tls};
use super::resolving::lookup;
use super::world::World;
use crate::audit::Outcome;

const INSIDE: &[&str] = &[
    "127.0.0.1",
    "127.9.9.9",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fd00::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "fec0::1",
];

#[tokio::test]
async fn a_rule_for_a_name_does_not_open_the_host() {
    let names = (0..INSIDE.len()).map(|n| format!("allow h{n}.wild.test"));
    let rules: Vec<String> = names
        .chain(["allow **.wild.test".into(), "allow **".into()])
        .collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let world = World::new(&rules).await;
    for (n, inside) in INSIDE.iter().enumerate() {
        let name = format!("h{n}.wild.test");
        world.resolves(&name, &[&[inside]]);
        let dialled = std::net::SocketAddr::new(inside.parse().unwrap(), 80);
        for seen in [
            connect(&world, &format!("{name}:80")).await,
            absolute(&world, &name).await,
            socks_name(&world, &name, 80).await,
            tls(&world, dialled, Some(&name)).await,
            host_header(&world, dialled, &name).await,
            // The name was resolved: its address is remembered, and is worth no more.
            binary(&world, dialled).await,
        ] {
            assert!(!seen.allowed(), "{inside}: {seen:?}");
            assert_eq!(seen.dialled, [], "{inside}");
            assert!(
                seen.line.reason.ends_with("and no rule names it"),
                "{seen:?}"
            );
        }
    }
}

/// An interface that comes up is the machine's from then on; no notification is needed.
#[tokio::test]
async fn nor_an_address_that_the_machine_has_by_now() {
    let world = World::new(&["allow **.wild.test", "allow **"]).await;
    world.resolves("h.wild.test", &[&["198.51.100.7"]]);
    let dialled = "198.51.100.7:80".parse().unwrap();
    for (own, allowed) in [(&[][..], true), (&["198.51.100.7"], false), (&[], true)] {
        world.has(own);
        for seen in [
            connect(&world, "h.wild.test:80").await,
            binary(&world, dialled).await,
        ] {
            assert_eq!(seen.allowed(), allowed, "{own:?}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_rule_that_allows_private_addresses_does() {
    let world = World::new(&[
        "allow-private db.wild.test",
        "allow **",
        "allow 10.9.0.0/16",
        "allow exact.wild.test",
    ])
    .await;
    world.resolves("db.wild.test", &[&["10.1.2.3"]]);
    world.resolves("net.wild.test", &[&["10.9.0.1"]]);
    world.resolves("exact.wild.test", &[&["10.1.2.4"]]);
    let seen = connect(&world, "exact.wild.test:5432").await;
    assert!(!seen.allowed(), "{seen:?}");
    assert_eq!(seen.line.address, Some("10.1.2.4:5432".parse().unwrap()));
    let seen = connect(&world, "db.wild.test:5432").await;
    assert_eq!(seen.line.rule.as_deref(), Some("r0"));
    assert_eq!(seen.dialled, ["10.1.2.3:5432".parse().unwrap()]);
    // The program asked for the name, and dials its address.
    assert!(
        binary(&world, "10.1.2.3:5432".parse().unwrap())
            .await
            .allowed()
    );
    // Or a rule names the address.
    let seen = connect(&world, "net.wild.test:80").await;
    assert_eq!(seen.dialled, ["10.9.0.1:80".parse().unwrap()]);
    assert!(!connect(&world, "10.1.2.4:80").await.allowed());
}

#[tokio::test]
async fn of_several_addresses_only_the_harmless_are_dialled() {
    let world = World::new(&["allow *.wild.test", "deny 192.0.2.50"]).await;
    world.refuse(true);
    let all: &[&str] = &[
        "127.0.0.1",
        "192.0.2.50",
        "192.0.2.51",
        "::1",
        "2001:db8::1",
    ];
    world.resolves("many.wild.test", &[all]);
    let seen = connect(&world, "many.wild.test:443").await;
    let expected = [
        "192.0.2.51:443".parse().unwrap(),
        "[2001:db8::1]:443".parse().unwrap(),
    ];
    assert_eq!(seen.dialled, expected);
}

#[tokio::test]
async fn a_second_dns_answer_does_not_change_a_verdict() {
    let world = World::new(&["allow *.wild.test"]).await;
    world.resolves(
        "re.wild.test",
        &[&["192.0.2.1"], &["127.0.0.1"], &["10.0.0.1"]],
    );
    for _ in 0..3 {
        let seen = connect(&world, "re.wild.test:80").await;
        assert_eq!(seen.dialled, ["192.0.2.1:80".parse().unwrap()]);
    }
    assert_eq!(world.asked(), ["re.wild.test"]);
    // Once the answer is old there is another one, which is checked too.
    tokio::time::pause();
    tokio::time::advance(crate::resolver::CACHE_TIMEOUT).await;
    tokio::time::resume();
    let seen = connect(&world, "re.wild.test:80").await;
    assert_eq!((seen.line.verdict, seen.dialled.len()), (Outcome::Deny, 0));
    assert!(seen.line.reason.contains("127.0.0.1"));
    // The first is what a program may still know.
    assert!(
        binary(&world, "192.0.2.1:80".parse().unwrap())
            .await
            .allowed()
    );
    assert!(
        !binary(&world, "127.0.0.1:80".parse().unwrap())
            .await
            .allowed()
    );
}

#[tokio::test]
async fn a_tunnel_goes_where_anything_may_be_said() {
    let world = World::new(&["allow *.wild.test", "allow-web 10.0.0.0/8"]).await;
    world.resolves("a.wild.test", &[&["10.1.2.3", "192.0.2.11"]]);
    let (seen, carried) = connect_binary(&world, "a.wild.test:22").await;
    assert!(carried, "{seen:?}");
    assert_eq!(seen.dialled, ["192.0.2.11:22".parse().unwrap()]);
    // By rules for HTTP and HTTPS alone nothing else is carried.
    world.resolves("b.wild.test", &[&["10.1.2.3"]]);
    let (seen, carried) = connect_binary(&world, "b.wild.test:22").await;
    assert!(seen.allowed() && !carried, "{seen:?}");
}

#[tokio::test]
async fn a_name_opens_its_own_addresses_only() {
    let world = World::new(&["allow one.test"]).await;
    assert!(lookup(&world, "one.test").await.is_some());
    for port in [22, 443] {
        assert!(
            binary(&world, ([192, 0, 2, 1], port).into())
                .await
                .allowed()
        );
    }
    for seen in [
        binary(&world, "192.0.2.2:443".parse().unwrap()).await,
        tls(&world, "192.0.2.2:443".parse().unwrap(), Some("one.test")).await,
        host_header(&world, "192.0.2.2:80".parse().unwrap(), "one.test").await,
        tls(&world, "192.0.2.2:443".parse().unwrap(), None).await,
        // It claims another name than the one that its address was allowed for.
        tls(&world, "192.0.2.1:443".parse().unwrap(), Some("two.test")).await,
    ] {
        assert!(!seen.allowed() && seen.dialled.is_empty(), "{seen:?}");
    }
}
