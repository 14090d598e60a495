"""How routes are kept: small, append-only, linear; and how engines' formats become ours."""

import base64

import numpy as np
import pytest

from rufus_plugins.algos.routing_replay.engine_formats import from_sglang, from_vllm
from rufus_plugins.algos.routing_replay.routers import RoutesError
from rufus_plugins.algos.routing_replay.storage import (
    RouteBuffer,
    compact,
    from_all_layers,
    missing,
    route_dtype,
    to_all_layers,
)


def rows(first, count, layers=2, top_k=2, experts=8):
    """Rows whose content names their token position."""
    position = np.arange(first, first + count)[:, None, None]
    return (position + np.arange(layers)[:, None] + 3 * np.arange(top_k)) % experts


@pytest.mark.parametrize("experts, dtype", [(1, "uint8"), (256, "uint8"), (257, "uint16"), (32767, "uint16")])
def test_ids_take_one_byte_up_to_256_experts_and_two_above(experts, dtype):
    assert route_dtype(experts) == dtype


def test_glm_4_5_air_takes_360_bytes_per_token():
    assert compact(np.zeros((1, 45, 8), np.int64), 128).nbytes == 360


@pytest.mark.parametrize("experts, absent", [(8, 255), (256, 255), (300, 65535)])
def test_rows_with_an_id_that_is_no_expert_become_missing(experts, absent):
    routes = np.array([[[1, 2]], [[-1, 2]], [[experts, 2]], [[experts - 1, 0]]])
    np.testing.assert_array_equal(
        compact(routes, experts), [[[1, 2]], [[absent, absent]], [[absent, absent]], [[experts - 1, 0]]]
    )


def test_fractions_are_no_routes():
    with pytest.raises(RoutesError, match="float64"):
        compact(np.zeros((3, 2, 2)), 8)


def test_later_turns_keep_the_rows_of_earlier_tokens():
    # turn 1: 5 prompt + 3 sampled tokens; turn 2's engine answers the whole context again, with other old rows
    buffer = RouteBuffer(layers=2, top_k=2, num_experts=8)
    buffer.add(rows(0, 7))
    second = rows(0, 14)
    second[:7] = 7 - second[:7]
    buffer.add(second)
    np.testing.assert_array_equal(buffer.join(), rows(0, 14))
    assert buffer.rows == 14 and buffer.gaps == 0 and buffer.join().dtype == np.uint8


def test_an_aborted_generation_resumes_in_order():
    # abort after 4 sampled tokens (10 prompt): 13 rows. The engine resumes on 14 tokens and samples 6 more: 19 rows
    # of the whole, or only the last 6, or none at all for the first try after the abort.
    whole, tail = RouteBuffer(2, 2, 8), RouteBuffer(2, 2, 8)
    whole.add(rows(0, 13))
    whole.add(rows(0, 0))
    whole.add(rows(0, 19))
    tail.add(rows(0, 13))
    tail.add(rows(13, 6), first=13)
    np.testing.assert_array_equal(whole.join(), rows(0, 19))
    np.testing.assert_array_equal(tail.join(), rows(0, 19))


def test_a_generation_without_routes_leaves_a_gap_that_goes_native():
    buffer = RouteBuffer(2, 2, 8)
    buffer.add(rows(0, 4))
    buffer.add(rows(6, 3), first=6)
    assert buffer.gaps == 2
    np.testing.assert_array_equal(buffer.join()[4:6], missing(2, 2, 2, np.uint8))
    np.testing.assert_array_equal(buffer.join()[6:], rows(6, 3))


def test_a_truncated_response_cuts_its_routes():
    buffer = RouteBuffer(2, 2, 8)
    buffer.add(rows(0, 7))
    buffer.add(rows(0, 15))
    buffer.cut(tokens=10)
    np.testing.assert_array_equal(buffer.join(), rows(0, 9))
    buffer.cut(tokens=5)
    buffer.add(rows(0, 6))
    np.testing.assert_array_equal(buffer.join(), rows(0, 6))
    buffer.cut(tokens=0)
    assert buffer.join().shape == (0, 2, 2)


def test_join_gives_exactly_one_row_less_than_tokens():
    buffer = RouteBuffer(2, 2, 8)
    buffer.add(rows(0, 7))
    assert buffer.join(tokens=8).shape[0] == 7
    np.testing.assert_array_equal(buffer.join(tokens=5), rows(0, 4))
    longer = buffer.join(tokens=11)  # tool tokens came after the last generation
    np.testing.assert_array_equal(longer[:7], rows(0, 7))
    np.testing.assert_array_equal(longer[7:], missing(3, 2, 2, np.uint8))
    assert buffer.join(tokens=1).shape[0] == buffer.join(tokens=0).shape[0] == 0


def test_rows_of_another_shape_raise():
    with pytest.raises(RoutesError, match=r"\(4, 3, 2\), not \[rows, 2, 2\]"):
        RouteBuffer(2, 2, 8).add(rows(0, 4, layers=3))


def test_the_buffer_does_not_keep_the_engines_arrays_alive():
    buffer = RouteBuffer(2, 2, 8)
    for turn in range(1, 101):
        buffer.add(rows(0, 10 * turn).astype(np.uint8))
    assert sum(part.nbytes for part in buffer._parts) == 1000 * 4  # not 10 + 20 + ... + 1000 rows
    assert all(part.base is None or part.base.nbytes == part.nbytes for part in buffer._parts)


def test_all_layer_layout_and_back():
    routes = compact(rows(0, 5), 8)
    whole = to_all_layers(routes, layers=[1, 3], num_layers=4)
    assert whole.shape == (5, 4, 2) and whole.dtype == np.int16
    assert not whole[:, [0, 2]].any()
    np.testing.assert_array_equal(whole[:, [1, 3]], routes)
    np.testing.assert_array_equal(from_all_layers(whole, [1, 3], 8), routes)


@pytest.mark.parametrize("experts", [8, 256, 300])
def test_missing_rows_survive_the_hosts_layout(experts):
    absent = missing(2, 2, 2, route_dtype(experts))
    back = from_all_layers(to_all_layers(absent, [0, 1], 2), [0, 1], experts)
    np.testing.assert_array_equal(back, absent)


def test_routes_of_a_model_with_fewer_layers_raise():
    with pytest.raises(RoutesError, match="do not hold decoder layer 3"):
        from_all_layers(np.zeros((5, 3, 2), np.int16), [1, 3], 8)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_vllms_array_is_indexed_by_absolute_layer(dtype):
    answer = np.zeros((6, 3, 2), dtype)
    answer[:, 1:] = rows(0, 6)
    np.testing.assert_array_equal(from_vllm(answer, layers=[1, 2], num_experts=8), rows(0, 6))
    with pytest.raises(RoutesError, match="enable_return_routed_experts"):
        from_vllm(None, [1, 2], 8)


# constructed from SGLang's source, not recorded from a running server: base64(int32, flat, little-endian)
@pytest.mark.parametrize("dtype", [None, "int32", "uint16", "uint8"])
def test_sglangs_text_decodes_to_the_same_rows(dtype):
    answer = np.zeros((6, 3, 2), dtype or "int32")
    answer[:, 1:] = rows(0, 6)
    meta_info = {"routed_experts": base64.b64encode(answer.tobytes()).decode()}
    if dtype:
        meta_info["routed_experts_dtype"] = dtype
    got = from_sglang(meta_info, layers=[1, 2], num_layers=3, top_k=2, num_experts=8)
    np.testing.assert_array_equal(got, rows(0, 6))
    assert got.dtype == np.uint8


@pytest.mark.parametrize(
    "meta_info, message",
    [
        ({}, "return_routed_experts=True"),
        ({"routed_experts": "AAAA", "routed_experts_dtype": "float32"}, "'float32'"),
        ({"routed_experts": "not base64!"}, "do not decode"),
        ({"routed_experts": base64.b64encode(np.zeros(7, np.int32).tobytes()).decode()}, "7 ids"),
    ],
)
def test_sglang_answers_that_do_not_fit_raise(meta_info, message):
    with pytest.raises(RoutesError, match=message):
        from_sglang(meta_info, layers=[1, 2], num_layers=3, top_k=2, num_experts=8)
