"""Lists of what a run of a foreign suite must show, and the judgement of a run by its list.

A list is a TSV with a header; lines that start with # are notes. Columns: test (for librdkafka
optionally test/subtest, the latter a part of what the runner prints for it), expect (pass or except), server
(default, or noautocreate for one with auto.create.topics.enable=false), for librdkafka ci (ci if CI runs it), and
why (for an exception, one of REASONS, then after a colon what it needs). Lists only grow: every test that the baseline knows has to be named in one.
"""
import csv

# What keeps a test that passes on Apache Kafka from passing here, or that this server has no part in.
REASONS = {'transactions', 'consumer protocol', 'compaction', 'authorizer', 'SASL', 'TLS',
           'several brokers', 'fails on Kafka too'}
PASSES = ('pass', 'flaky')
MAX_FLAKY = 3


def rows_of(path):
    with open(path) as f:
        return list(csv.DictReader((l for l in f if not l.startswith('#')), delimiter='\t', quoting=csv.QUOTE_NONE))


def load(path, baseline):
    """The rows of a list by test; ends the program if the list is not well formed or not complete."""
    rows, faults = {}, []
    for r in rows_of(path):
        name, expect, why = r['test'], r['expect'], r['why'] or ''
        if name in rows:
            faults.append('%s stands there twice' % name)
        if expect not in ('pass', 'except'):
            faults.append('%s: expect is %s, not pass or except' % (name, expect))
        if expect == 'except' and why.split(':')[0] not in REASONS:
            faults.append('%s: an exception begins with one of: %s' % (name, ', '.join(sorted(REASONS))))
        rows[name] = r
    named = {name.split('/')[0] for name in rows}
    for r in rows_of(baseline):
        if r.get('config') not in ('local', 'known issue') and r['test'] not in named:
            faults.append('%s is in the baseline and not in the list' % r['test'])
    if faults:
        raise SystemExit('%s:\n  %s' % (path, '\n  '.join(faults)))
    return rows


def judge(expected, results, whole):
    """Prints how results, {test: (result, detail)}, meet the list; 0 if they do, 1 if not.

    whole: every test of the list should have run, so one without a result is lost as well.
    """
    required = {n for n, r in expected.items() if r['expect'] == 'pass' and (whole or n in results)}
    allowed = set(expected) - required
    for n in results:
        if results[n][0] in PASSES and n not in required:
            print('add me: %s passes, and the list does not say so' % n)
    flaky = [n for n in results if results[n][0] == 'flaky']
    for n in flaky:
        print('flaky: %s: %s' % (n, results[n][1]))
    lost = [n for n in results if results[n][0] not in PASSES and n not in allowed]
    lost += sorted(required - set(results))
    for n in lost:
        print('LOST: %s: %s: %s' % (n, *results.get(n, ('did not run', ''))))
    print('by the list: %d of %d required tests pass, %d flaky (at most %d), %d exceptions ran'
          % (len(required - set(lost)), len(required), len(flaky), MAX_FLAKY, len(allowed & set(results))))
    return 1 if lost or len(flaky) > MAX_FLAKY or not required else 0
