//! `init-manifest` and the look at foreign tables.

use compact_local::manifest::{ClaimMode, Names, Postgres, Selection, schema};

use crate::postgres::{database, names};

const LEASE: std::time::Duration = std::time::Duration::from_secs(3600);

#[test]
fn init_creates_every_table_once_and_what_is_printed_is_the_same() {
    let database = database();
    let mut manifest = database.manifest();
    let created = manifest.init().unwrap();
    let tables = [
        "final_export_microshards",
        "final_export_shards",
        "final_export_microshards_slices",
        "final_export_microshards_snapshots",
    ];
    assert_eq!(created, tables);
    let catalog = "SELECT string_agg(c.relname || ' ' || coalesce(a.attname, ''), ',' ORDER BY c.relname, a.attnum) \
                   FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
                   WHERE c.relnamespace = 'public'::regnamespace";
    let mut client = database.client();
    let before: String = client.query_one(catalog, &[]).unwrap().get(0);
    assert_eq!(manifest.init().unwrap(), Vec::<String>::new());
    client.batch_execute(&schema(&names()).unwrap()).unwrap();
    let after: String = client.query_one(catalog, &[]).unwrap().get(0);
    assert_eq!(before, after);

    let printed = crate::postgres::database();
    printed.client().batch_execute(&schema(&names()).unwrap()).unwrap();
    let from_print: String = printed.client().query_one(catalog, &[]).unwrap().get(0);
    assert_eq!(from_print, after);
}

#[test]
fn a_status_that_is_none_of_ours_is_refused_by_the_table() {
    let database = database();
    database.filled(1);
    let error = database.client().execute("UPDATE final_export_microshards SET status = 'done'", &[]).unwrap_err();
    assert_eq!(error.code().unwrap().code(), "23514");
}

#[test]
fn no_index_holds_a_column_that_changes() {
    // Such an index makes no update HOT: measured, 2.3 times slower claims (schema.sql).
    let database = database();
    database.manifest().init().unwrap();
    let mut client = database.client();
    let indexed: i64 = client
        .query_one(
            "SELECT count(*) FROM pg_index i, unnest(i.indkey) k JOIN pg_attribute a ON a.attnum = k \
             WHERE i.indrelid = 'final_export_microshards'::regclass AND a.attrelid = i.indrelid \
             AND (i.indpred IS NOT NULL OR a.attname NOT IN ('microshard_id', 'run_id'))",
            &[],
        )
        .unwrap()
        .get(0);
    assert_eq!(indexed, 0);
}

#[test]
fn every_mismatch_is_named_at_once() {
    let database = database();
    database
        .client()
        .batch_execute(
            "CREATE TABLE other (id uuid, lang text, run_id text, status int, updated_at date); CREATE SCHEMA s",
        )
        .unwrap();
    let columns = ["microshard_id=id".to_owned(), "video_id=film".to_owned()];
    let names = Names::from_args("public.other", "s.shards", &columns).unwrap();
    let mut manifest = Postgres::connect(Some(&database.url), names).unwrap();
    let error = format!("{:#}", manifest.claim(&Selection::default(), ClaimMode::Rows, None, LEASE).unwrap_err());
    for fault in [
        "`public.other`",
        "`id` is uuid, not an integer",
        "`film` (for video_id) is missing",
        "`language` is missing",
        "`uri` is missing",
        "`status` is int4, not text",
        "`claimed_by` is missing",
        "`lease_expires_at` is missing",
        "`shard_id` is missing",
        "`updated_at` is date, not timestamptz or timestamp",
        "--column ours=theirs",
    ] {
        assert!(error.contains(fault), "{fault}: {error}");
    }
    assert!(!error.contains("sha256") && !error.contains("byte_size"), "optional columns are fine: {error}");
}

#[test]
fn columns_that_are_not_there_are_added_as_the_error_says() {
    let database = database();
    let mut client = database.client();
    client
        .batch_execute(r#"CREATE TABLE "odd one" (microshard_id int UNIQUE, language text, uri text, "State" text)"#)
        .unwrap();
    let names = Names::from_args("odd one", "shards", &["status=State".to_owned()]).unwrap();
    let mut manifest = Postgres::connect(Some(&database.url), names).unwrap();
    let error = format!("{:#}", manifest.init().unwrap_err());
    assert!(!error.contains(r#"ADD COLUMN "State""#) && error.contains("--column"), "{error}");
    let remedy = &error[error.find("ALTER TABLE").unwrap()..];
    client.batch_execute(&remedy[..=remedy.find(';').unwrap()]).unwrap();
    manifest.init().unwrap();
}

#[test]
fn a_schema_that_is_not_there_is_created_as_the_error_says() {
    let database = database();
    let names = Names::from_args("ml-1.files", "ml-2.shards", &[]).unwrap();
    let mut manifest = Postgres::connect(Some(&database.url), names).unwrap();
    for schema in ["ml-1", "ml-2"] {
        let error = format!("{:#}", manifest.init().unwrap_err());
        assert!(error.contains(&format!("no schema `{schema}`")), "{error}");
        database.client().batch_execute(&error[error.find("CREATE SCHEMA").unwrap()..]).unwrap();
    }
    assert_eq!(manifest.init().unwrap().len(), 4);
}

#[test]
fn a_missing_table_says_how_to_make_it() {
    let database = database();
    let error = database.manifest().claim(&Selection::default(), ClaimMode::None, None, LEASE).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("no table `final_export_microshards`") && error.contains("init-manifest"), "{error}");
    assert!(error.contains(&format!("postgres://postgres@127.0.0.1:{}/{}", database.port, database.name)), "{error}");
}

#[test]
fn init_beside_a_foreign_table_adds_only_what_is_absent() {
    let database = database();
    let mut client = database.client();
    client
        .batch_execute(
            "CREATE SCHEMA \"Odd Schema\"; CREATE TABLE \"Odd Schema\".\"micro\" (id int PRIMARY KEY, \"User\" text, language text, \
             uri varchar(200), status text, claimed_by text, shard_id text)",
        )
        .unwrap();
    let columns = ["microshard_id=id".to_owned(), "run_id=User".to_owned()];
    let names = Names::from_args("Odd Schema.micro", "Odd Schema.out", &columns).unwrap();
    let mut manifest = Postgres::connect(Some(&database.url), names.clone()).unwrap();
    assert_eq!(manifest.init().unwrap(), ["Odd Schema.out", "Odd Schema.micro_slices", "Odd Schema.micro_snapshots"]);
    let indexes: i64 =
        client.query_one("SELECT count(*) FROM pg_indexes WHERE tablename = 'micro'", &[]).unwrap().get(0);
    assert_eq!(indexes, 1, "the foreign table got an index");
}
