"""How a run is judged by its list."""
import contextlib, io, tempfile, unittest
import expected

LIST = {name: {'expect': expect} for name, expect in
        (('a', 'pass'), ('b', 'pass'), ('c', 'pass'), ('d', 'pass'), ('x', 'except'))}
GOOD = {'a': ('pass', ''), 'b': ('pass', ''), 'c': ('pass', ''), 'd': ('pass', ''), 'x': ('fail', '')}


def judge(changes, whole=True):
    """The exit code and what was printed for a good run with changes; None takes a result away."""
    results = {n: r for n, r in {**GOOD, **changes}.items() if r}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return expected.judge(LIST, results, whole), out.getvalue()


def load(list_text, baseline_text):
    with tempfile.NamedTemporaryFile('w+') as a, tempfile.NamedTemporaryFile('w+') as b:
        a.write(list_text), a.flush(), b.write(baseline_text), b.flush()
        return expected.load(a.name, b.name)


class Judge(unittest.TestCase):
    def test_a_run_as_listed_is_good(self):
        self.assertEqual(judge({})[0], 0)

    def test_a_required_test_that_does_not_pass_is_lost(self):
        for result in ('fail', 'timeout', 'crash', 'skip', 'empty'):
            code, out = judge({'b': (result, 'because')})
            self.assertEqual((code, 'LOST: b: %s: because' % result in out), (1, True))

    def test_a_required_test_without_a_result_is_lost_in_a_whole_run_only(self):
        self.assertEqual(judge({'b': None})[0], 1)
        self.assertEqual(judge({'b': None}, whole=False)[0], 0)

    def test_a_pass_that_is_not_listed_asks_to_be_added(self):
        for name in ('x', 'new'):
            code, out = judge({name: ('pass', '')})
            self.assertEqual((code, 'add me: %s ' % name in out), (0, True))

    def test_a_failure_of_an_unlisted_test_is_lost(self):
        self.assertEqual(judge({'new': ('fail', '')})[0], 1)

    def test_three_flaky_tests_are_printed_and_a_fourth_fails_the_run(self):
        code, out = judge({n: ('flaky', 'first: why') for n in 'abc'})
        self.assertEqual((code, out.count('flaky: ')), (0, 3))
        self.assertEqual(judge({n: ('flaky', '') for n in 'abcd'})[0], 1)


class Load(unittest.TestCase):
    HEAD = 'test\texpect\twhy\n'
    BASE = 'test\tresult\tconfig\na\tpass\tdefault\nm\tpass\tlocal\n'

    def test_a_list_names_every_test_of_the_baseline_that_asks_a_broker(self):
        self.assertEqual(set(load(self.HEAD + 'a/part\tpass\t\n', self.BASE)), {'a/part'})
        with self.assertRaisesRegex(SystemExit, 'a is in the baseline'):
            load(self.HEAD + 'b\tpass\t\n', self.BASE)

    def test_an_exception_has_a_known_reason(self):
        self.assertIn('a', load(self.HEAD + 'a\texcept\tTLS: certificates\n', self.BASE))
        with self.assertRaisesRegex(SystemExit, 'an exception begins'):
            load(self.HEAD + 'a\texcept\tit is hard\n', self.BASE)


if __name__ == '__main__':
    unittest.main()
